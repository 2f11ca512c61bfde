"""Model families: how config.json is read, and where files keep each tensor of the model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.errors import CheckpointError
from specdec.fields import Fields
from specdec.models.families.config_reader import ConfigReader
from specdec.models.number_formats import widened

ENCODER = "encoder."
"""Prefix of the canonical names of an encoder's tensors."""

_CANONICAL = re.compile(
    r"(?P<stack>encoder\.)?(?:layers\.(?P<layer>\d+)\.)?(?:(?P<mixture>experts\.)(?P<expert>\d+)\.)?"
    r"(?P<name>.+?)(?P<suffix>\.weight|\.bias)?"
)
"""The canonical name of a tensor."""

Array = NDArray[Any]
Shape = tuple[int, ...]
Config = Mapping[str, Any]


def wrong_shape(file: Any, name: str, shape: Shape, expected: Shape, more: str = "") -> CheckpointError:
    """Return the exception for a tensor of the wrong shape."""
    message = f"{file}: tensor '{name}' has shape {list(shape)}; expected {list(expected)}{more}"
    return CheckpointError(message)


@dataclass(frozen=True)
class Named:
    """Location and layout of a model tensor in a file.

    `name`: In the file, with ``{i}`` for the layer and ``{e}`` for the expert, without ".weight" or ".bias".
    `view`: From (file tensor, model shape, configuration) to the model tensor. `shape_there`: From (model
    shape, configuration) to the shape in the file. `keeps_rows`: Whether the model's rows are whole rows of
    the file, in some order. `moves_inputs`: Whether `view` orders the inputs of a row instead, by whole
    blocks of 32. `inputs_first`: Whether the file stores [inputs, outputs]. `index`: Expert on the first
    axis; None: the whole tensor. `coded`: Entry of the quantized tensor, if it differs. `suffixes`:
    Replacements of ".weight" and ".bias". `plus`: Added to stored weights. `heads`: "n_head" or "n_kv_head":
    one stored tensor per head. `make`: Computes a tensor that no file holds, f32, from its shape.
    """

    name: str
    view: Callable[[Array, Shape, Config], Array] = lambda array, shape, config: array
    shape_there: Callable[[Shape, Config], Shape] = lambda shape, config: shape
    _: KW_ONLY
    keeps_rows: bool = True
    moves_inputs: bool = False
    inputs_first: bool = False
    index: int | None = None
    coded: Named | None = None
    suffixes: Mapping[str, str] = field(default_factory=dict)
    plus: float = 0.0
    heads: str = ""
    make: Callable[[Shape], Array] | None = None

    @property
    def is_view(self) -> bool:
        """Whether the tensor has exactly the file's values."""
        return type(self) is Named and not self.plus and not self.heads and self.make is None

    def of_expert(self, expert: str) -> Named:
        """Return the entry of one expert."""
        if self.index is not None:
            return dataclasses.replace(self, index=int(expert))
        return dataclasses.replace(self, name=self.name.replace("{e}", expert))

    def numbers(self, suffix: str) -> str:
        """Return the dtype of the file's tensors if it is none of f32, f16 and bf16."""
        return ""

    def stored_names(self, suffix: str, config: Config) -> list[str]:
        """Return the names of the file's tensors."""
        if self.make is not None:
            return []
        if self.heads:
            return [f"{self.name}.{head}{suffix}" for head in range(config[self.heads])]
        return [self.name + self.suffixes.get(suffix, suffix)]

    def stored_shapes(self, suffix: str, shape: Shape, config: Config) -> list[Shape]:
        """Return the shapes of the file's tensors."""
        return [self.shape_there(shape, config)] * len(self.stored_names(suffix, config))

    def canonical(
        self, arrays: list[Array], number_format: str, shape: Shape, config: Config
    ) -> tuple[Array, str]:
        """Return the model tensor and its number format from the file's arrays."""
        if self.make is not None:
            return self.make(shape), "f32"
        if self.heads:
            return np.concatenate(arrays), number_format
        if self.plus:
            return widened(arrays[0], number_format) + np.float32(self.plus), "f32"
        return self.view(arrays[0], shape, config), number_format

    def store(self, stored: list[Array], array: Array, shape: Shape, config: Config) -> None:
        """Write a model tensor into the file's arrays, f32, at the entry's `index`: invert `canonical`."""
        if self.heads or self.make is not None:
            for whole, part in zip(stored, np.split(array, len(stored) or 1), strict=bool(stored)):
                whole[...] = part
            return
        (whole,) = stored
        view = self.view(whole, shape, config)
        if np.may_share_memory(view, whole):
            view[...] = array - np.float32(self.plus) if self.plus else array
        elif self.moves_inputs:
            inputs = np.arange(whole.shape[1])
            whole[:, self.view(inputs[None], shape, config)[0]] = array
        elif self.keeps_rows and whole.ndim == len(shape):  # rows in another order
            whole[self.view(np.arange(len(whole)), shape[:1], config)] = array
        else:
            positions = self.view(np.arange(whole.size).reshape(whole.shape), shape, config)
            whole.reshape(-1)[positions] = array


plus_one = partial(Named, plus=1.0)
"""Norm weights that are stored minus 1."""


def head_norms(name: str, heads: str) -> Named:
    """Return the entry of head norms in one tensor per head."""
    return Named(name, shape_there=lambda shape, config: (config["d_head"],), heads=heads)


def transposed(name: str) -> Named:
    """Return the entry of a Conv1D matrix [n_in, n_out], which is [n_out, n_in] if quantized."""
    return Named(
        name,
        lambda array, *_: array.T,
        lambda shape, _: shape[::-1],
        keeps_rows=False,
        inputs_first=True,
        coded=Named(name),
    )


def _widths(config: Config) -> list[int]:
    kv: int = config["n_kv_head"] * config["d_head"]
    return [config["n_head"] * config["d_head"], kv, kv]


def fused_row(name: str, part: int, turned: bool = False) -> Named:
    """Return the entry of queries (part 0), keys (1) or values (2) in a matrix of all three in order."""

    def shape_there(shape: Shape, config: Config) -> Shape:
        stored = (sum(_widths(config)), *shape[1:])
        return stored[::-1] if turned else stored

    def view(array: Array, shape: Shape, config: Config) -> Array:
        first = sum(_widths(config)[:part])
        return (array.T if turned else array)[first : first + shape[0]]

    coded = fused_row(name, part) if turned else None
    return Named(name, view, shape_there, keeps_rows=not turned, inputs_first=turned, coded=coded)


def fused_rows(name: str, *, turned: bool = False) -> dict[str, Named]:
    """Return the entries of queries, keys and values in one matrix."""
    return {f"attn_{role}": fused_row(name, part, turned) for part, role in enumerate("qkv")}


def fused_heads(name: str) -> dict[str, Named]:
    """Return the same for a matrix grouped by KV heads: queries, key, value."""

    def entry(part: int) -> Named:
        def view(array: Array, shape: Shape, config: Config) -> Array:
            n_kv, size = config["n_kv_head"], config["d_head"]
            group = config["n_head"] // n_kv
            heads = array.reshape(n_kv, group + 2, size, *array.shape[1:])
            chosen = heads[:, :group] if part == 0 else heads[:, group + part - 1]
            return chosen.reshape(shape)

        return Named(name, view, lambda shape, config: (sum(_widths(config)), *shape[1:]))

    return {f"attn_{role}": entry(part) for part, role in enumerate("qkv")}


def halves(name: str) -> dict[str, Named]:
    """Return the entries of gate and up, the first and second half of a matrix's rows."""

    def entry(part: int) -> Named:
        return Named(
            name,
            lambda array, shape, _: array[part * shape[0] : (part + 1) * shape[0]],
            lambda shape, _: (2 * shape[0], *shape[1:]),
        )

    return {"mlp_gate": entry(0), "mlp_up": entry(1)}


def offset(name: str, n_rows: int) -> Named:
    """Return the entry of a table with unused first rows."""
    return Named(name, lambda array, *_: array[n_rows:], lambda shape, _: (shape[0] + n_rows, *shape[1:]))


def row(name: str) -> Named:
    """Return the entry of a vector that the file keeps as a matrix of one row."""
    return Named(name, lambda array, shape, _: array.reshape(shape), lambda shape, _: (1, *shape))


def _halves_of(config: Config) -> NDArray[np.int64]:
    """Return the order of head dimensions that puts rotated neighbors n_freq apart; without RoPE all."""
    size = config["d_head"]
    n_freq = len(config["inv_freq"]) if config["position"] == "rotary" else size // 2
    turned = np.arange(2 * n_freq).reshape(n_freq, 2).T.reshape(-1)
    return np.concatenate([turned, np.arange(2 * n_freq, size)])


def turned(entry: Named) -> Named:
    """Permute an entry of queries or keys with interleaved RoPE to the core's half-split order."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        rows = entry.view(array, shape, config)
        heads = rows.reshape(-1, config["d_head"], *rows.shape[1:])
        return heads[:, _halves_of(config)].reshape(shape)

    return dataclasses.replace(entry, view=view)


def interleaved(name: str) -> Named:
    """Return the entry of queries or keys with interleaved RoPE."""
    return turned(Named(name))


def _by_head(shape: Shape, config: Config) -> Shape:
    return (shape[0] // config["d_head"], config["d_head"])


def interleaved_norms(name: str) -> Named:
    """Return the entry of head norms [heads, d_head] for `interleaved` queries or keys."""
    return Named(name, lambda array, shape, of: array[:, _halves_of(of)].reshape(shape), _by_head)


def rows_of_heads(name: str) -> Named:
    """Return the entry of head norms [heads, d_head]."""
    return Named(name, lambda array, shape, _: array.reshape(shape), _by_head)


@dataclass(frozen=True)
class Either:
    """Alternative entries of a tensor: the first whose tensors the file has."""

    options: tuple[Named, ...]


def named(layer: str = "", entry_type: Callable[[str], Named] = Named, **names: str) -> dict[str, Named]:
    """Return entries by canonical name; names that start with a dot are prefixed by `layer`."""
    return {
        canonical: entry_type(layer + name if name.startswith(".") else name)
        for canonical, name in names.items()
    }


@dataclass(frozen=True)
class Source:
    """A model tensor and the file's tensors that it is made of."""

    canonical: str
    shape: Shape
    stored: list[str]
    stored_shapes: list[Shape]
    numbers: str
    entry: Named
    config: Config = field(repr=False)

    @property
    def is_rows(self) -> bool:
        """Whether its rows are whole rows of the file, in some order, with the file's values."""
        return self.entry.keeps_rows and self.entry.is_view and not self.entry.moves_inputs

    def of_codes(self) -> Source:
        """Return the source of the tensor in a quantized file."""
        entry = self.entry.coded
        if entry is None:
            return self
        shapes = [entry.shape_there(self.shape, self.config)]
        return dataclasses.replace(self, entry=entry, stored_shapes=shapes)

    def take(self, arrays: list[Array], number_format: str) -> tuple[Array, str]:
        """Return the tensor and its number format from the file's arrays."""
        return self.entry.canonical(arrays, number_format, self.shape, self.config)

    def rows(self, stored: Array) -> Array:
        """Return the matrix's rows of blocks [rows, bytes] from the file's; needs `keeps_rows`."""
        return self.entry.view(stored, (self.shape[0], stored.shape[-1]), self.config)

    def put(self, arrays: list[Array], tensor: Array) -> None:
        """Write the tensor, f32 or rows of blocks (with `keeps_rows`), into the file's arrays."""
        if self.entry.index is not None:
            arrays = [array[self.entry.index] for array in arrays]
        self.entry.store(arrays, tensor, tensor.shape, self.config)


def coded_sources(sources: Iterable[Source], coded: set[str]) -> list[Source]:
    """Return the sources of a file whose tensors in `coded` are quantized."""
    return [source.of_codes() if coded.issuperset(source.stored) else source for source in sources]


@dataclass(frozen=True)
class MtpLayout:
    """Names of an MTP block's tensors in the files of a family.

    `counts`: Fields of config.json with the number of blocks, of which one is present. `block`: Prefix of the
    layer's tensors, which otherwise have the names of the family's layer 0; {n} is the number of the target's
    layers. `token_norm`, `feature_norm`, `projection`, `output_norm`: Tensors without ".weight"; a dot stands
    for `block`. `root`: Prefix of all MTP tensors; empty: `block`. `copies`: Unread copies of the target's
    embedding and head. `norm`: Entry of a norm's name. `features_first`: The projection reads the hidden
    state first. `dense`: It has no experts. `first`: Its attention is that of the target's first layer, not
    the last. `layer`: Prefix of the family's layer 0.
    """

    counts: tuple[str, ...]
    block: str
    token_norm: str
    feature_norm: str
    projection: str
    output_norm: str
    root: str = ""
    copies: tuple[str, ...] = ()
    norm: Callable[[str], Named] = Named
    features_first: bool = False
    dense: bool = False
    first: bool = False
    layer: str = "model.layers.0."

    def count(self, fields: Fields) -> str:
        """Return the field with the number of blocks."""
        return next(filter(fields.has, self.counts), self.counts[0])

    def roots(self, n_layer: int, n_blocks: int) -> tuple[str, ...]:
        """Return the prefixes of the tensors of all blocks of a target."""
        root = self.root or self.block
        if "{n}" not in root:
            return (root,)
        return tuple(root.format(n=n_layer + block) for block in range(n_blocks))

    def entries(self) -> dict[str, Named]:
        """Return the entries of the tensors outside the layer, with names of layer 0."""

        def full(name: str) -> str:
            return self.layer + name[1:] if name.startswith(".") else name

        projection = full(self.projection)
        return {
            "token_norm": self.norm(full(self.token_norm)),
            "feature_norm": self.norm(full(self.feature_norm)),
            "output_norm": self.norm(full(self.output_norm)),
            "feature_projection": _state_first(projection) if self.features_first else Named(projection),
        }


def _state_first(name: str) -> Named:
    """Return the entry of a projection with the hidden state's columns before the embedding's."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        return np.roll(array, shape[1] // 2, axis=1)

    return Named(name, view, keeps_rows=False, moves_inputs=True)


@dataclass(frozen=True)
class Family:
    """How checkpoints of an architecture are read.

    `read_config`: From a config.json to the canonical configuration. `tensors`: Canonical name, without
    "layers.{i}.", ".weight" and ".bias", to its entry, or a function of the configuration that returns this;
    encoder names start with "encoder.". `prefix`: Module prefix, added to names that lack it. `head`: The
    file's name of the head. `text_field`: Field of config.json that describes the decoder; empty: all of it.
    `quantized`: The family's own ``quant_method``; empty: none. `renamed`: Prefixes of file names to their
    replacements. `left_out`: Prefixes of tensors outside the model. `absent`: Defaults of absent fields.
    `harmless`: Fields that the class ignores or that repeat others. `settled`: Completes the configuration
    from the tensors in the files, where their presence decides; may remove duplicates from the tensors.
    `mtp`: Layout of multi-token prediction blocks, if files may have any. `bidirectional`: Values of
    ``use_bidirectional_attention`` that do not concern text.
    """

    read_config: Callable[[ConfigReader], dict[str, Any]]
    tensors: Mapping[str, Named | Either] | Callable[[Config], Mapping[str, Named]]
    model_type: str = ""
    absent: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = "model."
    head: str = "lm_head"
    text_field: str = ""
    quantized: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    settled: Callable[[dict[str, Any], MutableMapping[str, Any]], dict[str, Any]] | None = None
    mtp: MtpLayout | None = None
    bidirectional: tuple[str, ...] = ()

    def sources(self, config: Config, held: Callable[[str], bool] = lambda name: False) -> Iterator[Source]:
        """Yield the source of each model tensor, in the core's order; `held` says if the file has a name."""
        table = self.tensors(config) if callable(self.tensors) else self.tensors
        for canonical, shape in _core.tensor_shapes(config).items():
            matched = _CANONICAL.fullmatch(canonical)
            assert matched is not None
            parts = matched.groupdict("")
            layer, expert, suffix = parts["layer"], parts["expert"], parts["suffix"]
            base = parts["stack"] + parts["mixture"] + parts["name"]
            of = config["encoder"] if base.startswith(ENCODER) else config
            listed = table[base]
            options = listed.options if isinstance(listed, Either) else (listed,)
            found: list[tuple[Named, list[str]]] = []
            for entry in options:
                one = entry.of_expert(expert) if expert else entry
                if suffix == ".bias" and one.plus:
                    one = dataclasses.replace(one, plus=0.0)
                stored = [name.replace("{i}", layer) for name in one.stored_names(suffix, of)]
                found.append((one, stored))
                if all(map(held, stored)):
                    break
            else:
                one, stored = found[0]
            shapes = one.stored_shapes(suffix, shape, of)
            yield Source(canonical, shape, stored, shapes, one.numbers(suffix), one, of)

    def decoder_fields(self, fields: Fields) -> Fields:
        """Return the fields of the decoder; ``tie_word_embeddings`` is outside them."""
        if not self.text_field:
            return fields.with_absent(self.absent)
        inner = fields.object(self.text_field)
        if inner is None:
            raise fields.error(self.text_field, "an object")
        tied = fields.raw("tie_word_embeddings")
        inner = inner.with_absent(self.absent)
        return inner if tied is None else inner.replaced(tie_word_embeddings=tied)

    def full_name(self, name: str) -> str | None:
        """Return the table's name of a file's tensor; None if it is outside the model."""
        if name.startswith(self.left_out):
            return None
        for old, new in self.renamed.items():
            if name.startswith(old):
                return new + name[len(old) :]
        plain = name.removeprefix(self.prefix)
        if self.mtp is not None and self.mtp.root and plain.startswith(self.mtp.root):
            return plain
        return name if name.startswith((self.prefix, self.head + ".")) else self.prefix + name

    def n_mtp_blocks(self, fields: Fields) -> int:
        """Return the number of multi-token prediction blocks that the decoder's fields name."""
        if self.mtp is None:
            return 0
        found: int = fields.integer(self.mtp.count(fields), minimum=0, default=1)
        return found


# Default sizes of the configuration classes of transformers; other defaults are where fields are read.
# ``tests/test_families.py`` compares all of them with transformers.
_DECODER = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
_BART = (
    "d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "decoder_layers",
    "decoder_attention_heads", "decoder_ffn_dim", "vocab_size", "max_position_embeddings",
)  # fmt: skip
_NEO = ("hidden_size", "num_layers", "num_heads", "vocab_size", "max_position_embeddings")


def _sizes(names: tuple[str, ...], *values: int | None) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


absent = partial(_sizes, _DECODER)
absent_bart = partial(_sizes, _BART)
absent_gpt = partial(_sizes, ("n_embd", "n_layer", "n_head", "vocab_size", "n_positions"))
absent_neo = partial(_sizes, _NEO)
absent_t5 = partial(_sizes, ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size"))
NO_BIASES: dict[str, Any] = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
YARN: dict[str, Any] = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}

# The decoder of a vision-language model.
SEEING: dict[str, Any] = {
    "text_field": "text_config",
    "renamed": {
        "language_model.model.": "model.",
        "language_model.lm_head.": "lm_head.",
        "model.language_model.": "model.",
    },
    "left_out": (
        "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
    ),
    "harmless": (
        "_sliding_window_pattern", "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index",
        "image_token_id", "image_token_index", "mm_tokens_per_image", "multimodal_projector_bias",
        "projector_hidden_act", "spatial_merge_size", "vision_config", "vision_feature_layer",
    ),
}  # fmt: skip
