"""The algorithms in plain NumPy: the executable specification of the C core.

Slow, short, and written to be read alongside the papers. "Leviathan" is Fast Inference from Transformers via
Speculative Decoding (arXiv 2211.17192): its p is `target` here, the distribution to sample exactly, and its q
is `draft`, the one that proposes. Iterative speculative sampling, for several draft tokens at one position,
is how SpecInfer (arXiv 2305.09781) verifies a tree. This package imports nothing else of specdec, so that an
error cannot hide on both sides of a comparison.
"""

from specdec.reference.attention import attention_in_tiles
from specdec.reference.beam import beam_search
from specdec.reference.bits import exact_logits
from specdec.reference.decode import decode, decode_constrained
from specdec.reference.decoder import encode, logits, tree_logits
from specdec.reference.distributions import adjusted_logits, distribution
from specdec.reference.formats import (
    BLOCK,
    dequantize,
    fma,
    product,
    quantize,
    quantize_activations,
    round_bf16,
    stored,
)
from specdec.reference.llama import llama_logits
from specdec.reference.random import (
    PURPOSE_ACCEPT,
    PURPOSE_DRAFT,
    PURPOSE_NOISE,
    PURPOSE_SAMPLE,
    noise,
    philox4x32,
    uniform,
)
from specdec.reference.rules import (
    Candidate,
    accept_probability,
    block,
    classical,
    coupled,
    greedy,
    k_sequential,
    lenient_residual,
    race,
    rejection,
    residual,
    sample,
    smallest_rho,
    verify,
)

__all__ = [
    "BLOCK", "PURPOSE_ACCEPT", "PURPOSE_DRAFT", "PURPOSE_NOISE", "PURPOSE_SAMPLE", "Candidate",
    "accept_probability", "adjusted_logits", "attention_in_tiles", "beam_search", "block", "classical",
    "coupled", "decode", "decode_constrained", "dequantize", "distribution", "encode", "exact_logits",
    "fma", "greedy", "k_sequential", "lenient_residual", "llama_logits", "logits", "noise", "philox4x32",
    "product", "quantize", "quantize_activations", "race", "rejection", "residual", "round_bf16", "sample",
    "smallest_rho", "stored", "tree_logits", "uniform", "verify",
]  # fmt: skip
