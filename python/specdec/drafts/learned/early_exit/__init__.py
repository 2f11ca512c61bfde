"""Early exit: network and trainer; its draft, `EarlyExit`, is with others by the target itself."""
