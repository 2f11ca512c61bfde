"""The algorithms in plain NumPy: the executable specification that the C core is held to.

Slow, short, and written to be read beside the papers. "Leviathan" is Fast Inference from Transformers via
Speculative Decoding (arXiv 2211.17192); its p is `target` here, the distribution to be sampled exactly, and
its q is `draft`, the one that proposes. Iterative speculative sampling, for several drafts of one position,
is how SpecInfer (arXiv 2305.09781) verifies a tree. Nothing else of the package is imported, so that an error
cannot hide on both sides of a comparison.
"""

from specdec.reference.decoder import logits, tree_logits
from specdec.reference.distributions import distribution
from specdec.reference.formats import (
    BLOCK,
    dequantise,
    fma,
    product,
    quantise,
    quantise_activations,
    round_bf16,
    stored,
)
from specdec.reference.random import PURPOSE_ACCEPT, PURPOSE_DRAFT, PURPOSE_SAMPLE, philox4x32, uniform
from specdec.reference.rules import accept_probability, residual, sample, speculative_step, verify

__all__ = [
    "BLOCK",
    "PURPOSE_ACCEPT",
    "PURPOSE_DRAFT",
    "PURPOSE_SAMPLE",
    "accept_probability",
    "dequantise",
    "distribution",
    "fma",
    "logits",
    "philox4x32",
    "product",
    "quantise",
    "quantise_activations",
    "residual",
    "round_bf16",
    "sample",
    "speculative_step",
    "stored",
    "tree_logits",
    "uniform",
    "verify",
]
