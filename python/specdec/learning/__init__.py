"""Networks of drafts in PyTorch and what they are trained by; `specdec.training` trains them.

Importing this folder needs torch, ``pip install 'specdec[train]'``. Decoding never does.
"""

from specdec.errors import MissingPackageError

try:
    import torch as torch
except ImportError:
    raise MissingPackageError(
        "training needs torch, which is not installed: pip install 'specdec[train]'"
    ) from None
