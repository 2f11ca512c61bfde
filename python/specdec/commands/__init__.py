"""The command line: a file for each verb, imported when the verb is asked for."""
