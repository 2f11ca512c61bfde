"""Training of early exits; the draft is `specdec.drafts.EarlyExit`."""
