"""Networks of drafts in PyTorch and what they are trained by; `specdec.training` trains them.

Importing this folder needs torch, ``pip install torch transformers``. Decoding never does.
"""

from specdec.errors import MissingPackageError

try:
    import torch as torch
except ImportError:
    raise MissingPackageError("training needs torch, which is not installed: pip install torch") from None
