"""lm-evaluation-harness with specdec as its model: ``--model specdec``.

``python -m specdec.integrations.lm_eval`` runs the harness's command line with the model registered.
"""

from __future__ import annotations

from specdec.errors import MissingPackageError

try:
    import lm_eval as _harness  # noqa: F401
except ImportError:
    raise MissingPackageError(
        "specdec.integrations.lm_eval needs lm_eval, which is not installed: "
        "pip install 'specdec-cpu[lm-eval]'"
    ) from None

from specdec.integrations.lm_eval.harness_model import SpecdecLM

__all__ = ["SpecdecLM"]
