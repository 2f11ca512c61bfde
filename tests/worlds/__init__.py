"""Tiny models, folders, files, drafts and constraints for the tests and the fuzzer."""
