"""``python -m specdec.integrations.lm_eval``."""

from specdec.integrations.lm_eval.harness_command import main

if __name__ == "__main__":
    main()
