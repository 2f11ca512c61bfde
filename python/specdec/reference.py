"""The algorithms in plain NumPy: the executable specification that the C core is held to.

Slow, short, and written to be read beside the papers. "Leviathan" is Fast Inference from Transformers via
Speculative Decoding (arXiv 2211.17192); its p is `target` here, the distribution to be sampled exactly, and
its q is `draft`, the one that proposes. Iterative speculative sampling, for several drafts of one position,
is how SpecInfer (arXiv 2305.09781) verifies a tree. Nothing else of the package is imported, so that an error
cannot hide on both sides of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

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

Array = NDArray[Any]
Probs = NDArray[np.float64]


# ---------------------------------------------------------------------------------------- the decoder


def logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    *,
    dtype: DTypeLike = np.float64,
    format: str = "exact",
    cache_format: str = "exact",
) -> Array:
    """Logits after every token of a sequence.

    Parameters
    ----------
    config : mapping
        The canonical configuration (``specdec.Model.config``).
    tensors : mapping of str to ndarray
        Canonical name to weights; matrices are [n_out, n_in].
    ids : sequence of int, [n_tokens]
    dtype : numpy dtype
        Everything is computed in it; float64 for an oracle.
    format : {"exact", "f32", "bf16", "int8", "int4"}
        Number format of the matrices, whose products are then those of `product`; "exact": in `dtype`.
        Embeddings, which are read by row, are rounded to bf16 in the last three.
    cache_format : {"exact", "f32", "bf16"}
        Queries, keys and values are rounded to bf16 in the last.

    Returns
    -------
    ndarray, [n_tokens, n_vocab]
    """
    return _forward(config, tensors, ids, _chain(len(ids)), dtype, format, cache_format)


def tree_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    prefix: Sequence[int],
    tokens: Sequence[int],
    parents: Sequence[int],
    *,
    dtype: DTypeLike = np.float64,
    format: str = "exact",
    cache_format: str = "exact",
) -> Array:
    """Logits after every node of a tree that hangs on `prefix`.

    A node attends to the prefix, to its ancestors and to itself; its position is ``len(prefix)`` plus its
    depth.

    Parameters
    ----------
    prefix : sequence of int
        The committed tokens; may be empty.
    tokens, parents : sequence of int, [n_nodes]
        A parent is an earlier node; -1, the parent of node 0, is the end of the prefix.
    dtype, format, cache_format
        As in `logits`.

    Returns
    -------
    ndarray, [n_nodes, n_vocab]
    """
    n_prefix = len(prefix)
    hung = _chain(n_prefix) + [n_prefix + parent for parent in parents]
    return _forward(config, tensors, [*prefix, *tokens], hung, dtype, format, cache_format)[n_prefix:]


def _chain(n_rows: int) -> list[int]:
    return list(range(-1, n_rows - 1))


def _forward(
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    ids: Sequence[int],
    parents: Sequence[int],
    dtype: DTypeLike,
    format: str,
    cache_format: str,
) -> Array:
    """The one forward: a sequence is a tree whose every node has one child."""
    n_rows, n_head, n_kv_head = len(ids), config["n_head"], config["n_kv_head"]

    # visible[i, j]: row i attends to row j, which is an ancestor of it or itself.
    visible, position = np.eye(n_rows, dtype=bool), np.zeros(n_rows, dtype=int)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visible[row] |= visible[parent]
            position[row] = position[parent] + 1
    if config["sliding_window"]:
        visible &= position[:, None] - position < config["sliding_window"]

    def tensor(name: str) -> Array:
        return tensors[name].astype(dtype)

    def times(x: Array, name: str) -> Array:
        return x @ tensor(name).T if format == "exact" else product(x, tensors[name], format).astype(dtype)

    def linear(x: Array, name: str) -> Array:
        y = times(x, f"{name}.weight")
        return y + tensor(f"{name}.bias") if f"{name}.bias" in tensors else y

    def norm(x: Array, name: str) -> Array:
        """RMSNorm; LayerNorm is that of the centred row, and a bias."""
        if config["norm"] == "layer":
            x = x - np.mean(x, axis=-1, keepdims=True)
        scale: Array = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config["norm_eps"])
        y = x / scale * tensor(f"{name}.weight")
        return y + tensor(f"{name}.bias") if config["norm"] == "layer" else y

    def heads(x: Array) -> Array:
        return x.reshape(n_rows, -1, config["d_head"])

    def rotate(x: Array) -> Array:
        """Turn each pair (x[i], x[i + d_head / 2]) by the angle position * inv_freq[i]."""
        if config["position"] != "rotary":
            return x
        angle = position[:, None, None] * np.asarray(config["inv_freq"], dtype=np.float64)
        cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    activation = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}[config["activation"]]

    x = tensor("token_embedding")[np.asarray(ids, dtype=int)]
    if format in ("bf16", "int8", "int4"):
        x = round_bf16(x).astype(dtype)
    if config["position"] == "learned":
        x = x + tensor("position_embedding")[position]
    for i in range(config["n_layer"]):
        h = norm(x, f"layers.{i}.attn_norm")
        q = rotate(heads(linear(h, f"layers.{i}.attn_q")))
        k = rotate(heads(linear(h, f"layers.{i}.attn_k")))
        v = heads(linear(h, f"layers.{i}.attn_v"))
        if cache_format == "bf16":
            q, k, v = (round_bf16(part).astype(dtype) for part in (q, k, v))
        k, v = (np.repeat(kv, n_head // n_kv_head, axis=1) for kv in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(config["d_head"])
        weights = _softmax(np.where(visible, scores, -np.inf))
        mixed = np.einsum("hij,jhd->ihd", weights, v).reshape(n_rows, -1)
        x = x + linear(mixed, f"layers.{i}.attn_out")

        h = norm(x, f"layers.{i}.mlp_norm")
        up = linear(h, f"layers.{i}.mlp_up")
        hidden = activation(linear(h, f"layers.{i}.mlp_gate")) * up if config["gated"] else activation(up)
        x = x + linear(hidden, f"layers.{i}.mlp_down")
    return times(norm(x, "output_norm"), "token_embedding" if config["tied"] else "head")


def _softmax(x: Array) -> Array:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = x.sum(axis=-1, keepdims=True)
    return x / total


def _silu(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(x / 2))


def _gelu(x: Array) -> Array:
    erf: Array = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
    return x * (0.5 + 0.5 * erf)


def _gelu_tanh(x: Array) -> Array:
    return x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# ------------------------------------------------------------------------------------ number formats
#
# What a row kernel computes, to the bit, in each format: every operation below is rounded once, to nearest
# with ties to even, where and only where it says so.

BLOCK = 32
"""Numbers along the inputs that share one scale in int8 and int4; the last block is padded with zeros."""


def fma(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> Array:
    """x * y + z of float32, rounded once, elementwise.

    The product is exact in float64. The sum there is rounded to odd (its last bit tells that something was
    lost), so that rounding it again, to float32, gives what one rounding would have given.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN come out as they should
        product, z = np.asarray(x, np.float64) * np.asarray(y, np.float64), np.asarray(z, np.float64)
        total = np.asarray(product + z)
        part = total - product
        lost = (product - (total - part)) + (z - part)  # exactly (Knuth's two-sum)
        even = total.view(np.int64) & 1 == 0
        odd = np.nextafter(total, np.copysign(np.inf, lost))
        return np.where(even & np.isfinite(lost) & (lost != 0), odd, total).astype(np.float32)


def round_bf16(x: ArrayLike) -> Array:
    """Finite float32 rounded to the nearest bf16, ties to even, given as float32."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    carry = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits + carry & np.uint32(0xFFFF0000)).view(np.float32)


def quantise(weights: ArrayLike, dtype: str) -> tuple[Array, Array]:
    """A matrix of weights in int8 or int4.

    In int8 the scale of a block is its largest magnitude / 127, so codes go from -127 to 127; in int4 it is
    its element of largest magnitude (the first of several) / -8, which makes that element -8, so codes go
    from -8 to 7 and a scale may be negative. The scale is rounded to f16 before it is used. A block whose
    scale is 0, or rounds to it, has codes 0.

    Parameters
    ----------
    weights : array_like, [n_out, n_in]
        Taken as float32, in which everything is computed.
    dtype : {"int8", "int4"}

    Returns
    -------
    codes : ndarray of int8, [n_out, n_in]
    scales : ndarray of float16, [n_out, n_blocks]
        Of each row and block of 32 inputs.

    Raises
    ------
    ValueError
        A weight so large that its scale is infinite in f16.
    """
    divisor, low, high = {"int8": (127, -127, 127), "int4": (-8, -8, 7)}[dtype]
    weights = np.asarray(weights, dtype=np.float32)
    blocks = _blocks(weights)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    if dtype == "int8":
        largest = np.abs(largest)
    with np.errstate(over="ignore"):
        scales = (largest / np.float32(divisor)).astype(np.float16)
    if np.isinf(scales).any():
        raise ValueError(f"a weight of {largest[np.isinf(scales)][0]:g} has no finite scale in {dtype}")
    codes = _codes(blocks, _inverse(np.float32(1), scales.astype(np.float32)), low, high)
    return codes.reshape(len(weights), -1)[:, : weights.shape[1]], scales[..., 0]


def dequantise(codes: ArrayLike, scales: ArrayLike) -> Array:
    """The float32 weights that codes and scales stand for; the products are exact."""
    codes = np.asarray(codes)
    widened = np.repeat(np.asarray(scales, dtype=np.float32), BLOCK, axis=-1)
    weights: Array = codes.astype(np.float32) * widened[:, : codes.shape[1]]
    return weights


def stored(weights: ArrayLike, dtype: str) -> Array:
    """A matrix as the model computes with it once it is packed in a format: float32, [n_out, n_in]."""
    if dtype == "f32":
        return np.asarray(weights, dtype=np.float32)
    return round_bf16(weights) if dtype == "bf16" else dequantise(*quantise(weights, dtype))


def quantise_activations(x: ArrayLike) -> tuple[Array, Array]:
    """Rows of activations as int8 and int4 weights meet them: int8 with one float32 scale for each block.

    The scale is the smallest power of two 2^e with largest magnitude <= 127 * 2^e (e at most 100). A block of
    numbers below 2^-100 counts as zeros: scale 0 and codes 0.

    Parameters
    ----------
    x : array_like, [n_rows, n_in]
        Taken as float32, in which everything is computed.

    Returns
    -------
    codes : ndarray of int8, [n_rows, n_in]
        From -127 to 127.
    scales : ndarray of float32, [n_rows, n_blocks]
    """
    x = np.asarray(x, dtype=np.float32)
    blocks = _blocks(x)
    largest = np.abs(blocks).max(-1, keepdims=True)
    mantissa, exponent = np.frexp(largest)  # largest = mantissa * 2**exponent, mantissa in [1/2, 1)
    exponent = np.minimum(exponent - 7 + (mantissa > np.float32(127 / 128)), 100)
    scales = np.where(largest < np.float32(2.0**-100), np.float32(0), np.ldexp(np.float32(1), exponent))
    codes = _codes(blocks, _inverse(np.float32(1), scales), -127, 127)
    return codes.reshape(len(x), -1)[:, : x.shape[1]], scales[..., 0]


def product(x: ArrayLike, weights: ArrayLike, dtype: str) -> Array:
    """Rows of activations times a matrix of weights, with the bits of the core's row kernels.

    Every output is one chain along the inputs, so it depends on its row and its weights alone:

    - f32: ``sum = fma(x[k], w[k], sum)``, k ascending;
    - bf16: both sides rounded to bf16, then by pairs, the second of a pair first,
      ``sum = fma(x[k], w[k], fma(x[k + 1], w[k + 1], sum))``, a missing last one being 0; subnormal numbers
      are zero, among the factors and after each fma. This is the instruction VDPBF16PS;
    - int8, int4: block after block, ``sum = fma(block_sum * x_scale, w_scale, sum)`` with the exact integer
      sum of the products of codes; its product with a power of two is exact too.

    Parameters
    ----------
    x : array_like, [n_rows, n_in]
        Activations, taken as float32.
    weights : array_like, [n_out, n_in]
        Before rounding or quantising; this does it.
    dtype : {"f32", "bf16", "int8", "int4"}

    Returns
    -------
    ndarray of float32, [n_rows, n_out]
    """
    x, weights = np.asarray(x, dtype=np.float32), np.asarray(weights, dtype=np.float32)
    total = np.zeros((len(x), len(weights)), dtype=np.float32)
    if dtype == "f32":
        for k in range(x.shape[1]):
            total = fma(x[:, k, None], weights[:, k], total)
    elif dtype == "bf16":
        x, weights = (_flush(round_bf16(_padded(rows, 2))) for rows in (x, weights))
        for k in range(0, x.shape[1], 2):
            for i in (k + 1, k):
                total = _flush(fma(x[:, i, None], weights[:, i], total))
    else:
        x_codes, x_scales = quantise_activations(x)
        w_codes, w_scales = quantise(weights, dtype)
        x_blocks, w_blocks = (_blocks(codes.astype(np.int32)) for codes in (x_codes, w_codes))
        for b in range(x_blocks.shape[1]):
            block_sum = (x_blocks[:, b] @ w_blocks[:, b].T).astype(np.float32)  # below 2**24, so exact
            total = fma(block_sum * x_scales[:, b, None], w_scales[:, b].astype(np.float32), total)
    return total


def _padded(rows: Array, multiple: int) -> Array:
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % multiple)))


def _blocks(rows: Array) -> Array:
    """[n_rows, n_in] as [n_rows, n_blocks, 32]."""
    padded = _padded(rows, BLOCK)
    return padded.reshape(len(rows), padded.shape[1] // BLOCK, BLOCK)


def _inverse(numerator: np.float32, x: Array) -> Array:
    """numerator / x in float32; 0 where x is 0."""
    return np.divide(numerator, x, out=np.zeros_like(x), where=x != 0)


def _codes(blocks: Array, inverse: Array, low: int, high: int) -> Array:
    return np.clip(np.rint(blocks * inverse), low, high).astype(np.int8)


def _flush(x: Array) -> Array:
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


# --------------------------------------------------------------------------------- distributions (2.2)


def distribution(logits: ArrayLike, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Probs:
    """Standardised probabilities: every way of sampling as plain sampling from an adjusted distribution.

    Leviathan, section 2.2. The order is softmax, then top-k, then nucleus on what top-k left; ties go to the
    lowest id throughout.

    Parameters
    ----------
    logits : array_like, [n_vocab]
        -inf for an excluded token; at least one finite.
    temperature : float
        Divides the logits; 0 puts all mass on the largest logit.
    top_k : int
        Exactly this many tokens are kept; 0 for all.
    top_p : float
        The smallest set of most probable tokens whose mass is at least this is kept; 1 for all.

    Returns
    -------
    ndarray of float64, [n_vocab]
    """
    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        point = np.zeros(len(logits))
        point[np.argmax(logits)] = 1.0
        return point
    with np.errstate(over="ignore"):  # -inf is what a small temperature means
        exponents = (logits - logits.max()) / temperature
    probs: Probs = _softmax(exponents)
    most_probable = np.argsort(-logits, kind="stable")
    if top_k > 0:
        probs[most_probable[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1:
        n_kept = np.searchsorted(np.cumsum(probs[most_probable]), top_p) + 1
        probs[most_probable[n_kept:]] = 0.0
    probs /= probs.sum()
    return probs


def sample(probs: ArrayLike, uniform: float) -> int:
    """The first token, in order of id, at which the cumulative mass exceeds `uniform`.

    A token without mass does not raise it, so it is never drawn. Where rounding lets the whole sum end at or
    below `uniform`, the last token that has mass is drawn.
    """
    probs = np.asarray(probs, dtype=np.float64)
    token = np.searchsorted(np.cumsum(probs), uniform, side="right")
    return int(token) if token < len(probs) else int(np.flatnonzero(probs)[-1])


# ------------------------------------------------------------------------------- speculative sampling (2.3)


def accept_probability(target: Probs, draft: Probs, token: int) -> float:
    """min(1, target / draft) of a token drawn from `draft` (Leviathan, section 2.3)."""
    if target[token] >= draft[token]:
        return float(target[token] > 0)
    return float(target[token] / draft[token])


def residual(target: Probs, draft: Probs) -> Probs:
    """norm(max(0, target - draft)), what is sampled after a rejection; `target` itself where nothing is left.

    Nothing is left only if the two are equal, and then no draft is rejected but for rounding.
    """
    left = np.maximum(0.0, target - draft)
    mass = left.sum()
    return left / mass if mass > 0 else target


def speculative_step(
    target: Callable[[list[int]], Probs],
    draft: Callable[[list[int]], Probs],
    prefix: Sequence[int],
    gamma: int,
    random: Callable[[], float],
) -> list[int]:
    """Leviathan's Algorithm 1, SpeculativeDecodingStep: `prefix` with 1 to gamma + 1 new tokens.

    Parameters
    ----------
    target, draft : callable
        From a list of token ids to the distribution of the next one, [n_vocab].
    prefix : sequence of int
    gamma : int
        Tokens to guess.
    random : callable
        Gives the next uniform of [0, 1): gamma for the guesses, gamma to accept them, one for the last token.
        Accepting asks for r < target / draft where the paper has r <= target / draft; the two differ with
        probability 0 for real numbers, but r of a computer can be 0, and a token of target probability 0
        must never be accepted.
    """
    # Sample gamma guesses x_1, ..., x_gamma from the draft autoregressively.
    x: list[int] = []
    q: list[Probs] = []
    for _ in range(gamma):
        q.append(draft([*prefix, *x]))
        x.append(sample(q[-1], random()))
    # Run the target in parallel.
    p = [target([*prefix, *x[:i]]) for i in range(gamma + 1)]
    # Determine the number of accepted guesses n.
    r = [random() for _ in range(gamma)]
    n = min([i for i in range(gamma) if not r[i] < accept_probability(p[i], q[i], x[i])] + [gamma])
    # Adjust the distribution from the target if needed.
    adjusted = residual(p[n], q[n]) if n < gamma else p[n]
    # Return one token from the target, and n tokens from the draft.
    return [*prefix, *x[:n], sample(adjusted, random())]


def verify(
    tokens: Sequence[int],
    parents: Sequence[int],
    target_probs: Probs,
    draft_probs: Probs,
    uniforms: Sequence[float] | Probs,
) -> tuple[list[int], int, list[float]]:
    """The rejection rule on a tree of drafts: iterative speculative sampling at each node from the root down.

    The children of a node are tried in node order, each against what the children before it left of the
    target's distribution. The first accepted child is descended into. When none is accepted, what is left is
    sampled; at a leaf nothing has been taken off and that is the bonus token. On a chain this is Algorithm 1.

    Parameters
    ----------
    tokens, parents : sequence of int, [n_nodes]
        Node 0 is the root, the last committed token (``tokens[0]`` unused, ``parents[0] == -1``); every other
        node comes after its parent.
    target_probs : ndarray of float64, [n_nodes, n_vocab]
        The target's distribution after each node.
    draft_probs : ndarray of float64, [n_nodes, n_vocab]
        Row i is the distribution that node i was drawn from; row 0 is unused.
    uniforms : sequence of float, [n_nodes + 1]
        In [0, 1): entry i decides node i, the last one draws the final token, entry 0 is unused.

    Returns
    -------
    path : list of int
        The accepted nodes from the root (excluded) down.
    token : int
        The token after them, from the target.
    betas : list of float
        sum(min(target, draft)), the chance of acceptance (Leviathan, Theorem 3.5), of the first child of
        each node of the path, root included, that has children.
    """
    n_nodes, node = len(tokens), 0
    path: list[int] = []
    betas: list[float] = []
    while True:
        target = target_probs[node]
        children = [child for child in range(1, n_nodes) if parents[child] == node]
        if children:
            betas.append(float(np.minimum(target, draft_probs[children[0]]).sum()))
        for child in children:
            if uniforms[child] < accept_probability(target, draft_probs[child], tokens[child]):
                path.append(child)
                node = child
                break
            target = residual(target, draft_probs[child])
        else:
            return path, sample(target, uniforms[n_nodes]), betas


# -------------------------------------------------------------------------------------- random numbers

PURPOSE_DRAFT, PURPOSE_ACCEPT, PURPOSE_SAMPLE = 0, 1, 2


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words from a counter of four and a key of two.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product2 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = product2 >> 32 ^ c1 ^ k0, product2 & low, product0 >> 32 ^ c3 ^ k1, product0 & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return c0, c1, c2, c3


def uniform(seed: int, sequence: int, position: int, purpose: int, index: int) -> float:
    """The random number of one decision, a multiple of 2**-53 in [0, 1).

    It depends on nothing but its key, so neither batching nor the order of computation can change it.

    Parameters
    ----------
    seed : int
        64 bits.
    sequence : int
        Which sequence of the run; this and the rest have 32 bits each.
    position : int
        Tokens its text had when the round began.
    purpose : int
        ``PURPOSE_DRAFT``, ``PURPOSE_ACCEPT`` or ``PURPOSE_SAMPLE``.
    index : int
        Node that is drafted or accepted; 0 for the token that ends the round.
    """
    x0, x1, _, _ = philox4x32((position, index, purpose, sequence), (seed & 0xFFFFFFFF, seed >> 32))
    return ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53
