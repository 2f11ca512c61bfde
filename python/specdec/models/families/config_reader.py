"""Reading of config.json fields: sizes, rotary positions, windows, activations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdec.errors import InputError
from specdec.fields import MAX_INT, REQUIRED, Fields
from specdec.models.families.rotary import (
    dynamic_scaled,
    linear_scaled,
    llama3_scaled,
    proportional_frequencies,
    rotary_frequencies,
    yarn_attention_factor,
    yarn_scaled,
)

# Bounds that keep a wrong config.json from allocating memory before the weights' shapes expose it.
_MAX_LAYERS: Final = 10_000
MAX_D_HEAD: Final = 65_536
_MAX_SCALE: Final = 1e6
_MAX_CONTEXT: Final = 1 << 20

# gelu_new, gelu_fast, gelu_accurate and the *_tanh names of transformers are all the tanh approximation of
# GELU (Hendrycks and Gimpel 2016) with the same constants.
_GELU_TANH = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")
ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    **dict.fromkeys(_GELU_TANH, "gelu_tanh"), "relu": "relu", "relu2": "relu2",
}  # fmt: skip

_ROPE_TYPES: Final = {
    name: name for name in ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
} | {"su": "longrope"}

LAYER_TYPES: Final = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Rotation:
    """Rotary frequencies, the factor of cosines and sines, and the context length they are for."""

    inv_freq: list[float]
    factor: float
    n_ctx: int


class ConfigReader:
    """Reader of a config.json, or of its decoder part; `n_ctx` is the requested context length, if any."""

    def __init__(self, fields: Fields, n_ctx: int | None = None) -> None:
        self.fields = fields
        self._n_ctx = n_ctx

    def with_absent(self, absent: Mapping[str, Any]) -> ConfigReader:
        """Return a reader with defaults for absent fields."""
        return ConfigReader(self.fields.with_absent(absent), self._n_ctx)

    def name(self, one: str, other: str) -> str:
        """Return which of two names of a field the file uses."""
        return other if self.fields.has(other) and not self.fields.has(one) else one

    def with_single(self, *names: str) -> ConfigReader:
        """Return a reader in which lists of equal values, one for each layer, are that value."""
        values = {name: self.fields.raw(name) for name in names}
        lists = {name: value for name, value in values.items() if isinstance(value, list) and value}
        for name, value in lists.items():
            if value[0] is None or any(one != value[0] for one in value):
                raise self.fields.unsupported(name, "the same value for all layers")
        return ConfigReader(self.fields.replaced(**{name: lists[name][0] for name in lists}), self._n_ctx)

    # ------------------------------------------------------------------------------------ sizes

    def sizes(
        self,
        *,
        d_model: str = "hidden_size",
        n_head: str = "num_attention_heads",
        n_layer: str = "num_hidden_layers",
        n_kv_head: str | None = "num_key_value_heads",
        absent_kv_head: int | None = None,
        d_ff: str = "intermediate_size",
        default_d_ff: int | None = None,
        d_head: str | None = "head_dim",
        default_d_head: int | None = None,
    ) -> dict[str, Any]:
        """Return the sizes of the canonical configuration without ``n_ctx``; arguments name their fields.

        ``n_kv_head`` None: as many as heads, which a null field means too; ``absent_kv_head``: default of an
        absent field. ``default_d_ff``: in multiples of d_model.
        """
        fields = self.fields
        width = fields.integer(d_model)
        heads = fields.integer(n_head)
        kv_heads = heads
        if n_kv_head is not None:
            default = heads if absent_kv_head is None or fields.has(n_kv_head) else absent_kv_head
            kv_heads = fields.integer(n_kv_head, default=default)
            if heads % kv_heads:
                raise fields.error(n_kv_head, f"a divisor of {n_head}, which is {heads}")
        size = None
        if d_head is not None:
            size = fields.integer(d_head, minimum=2, maximum=MAX_D_HEAD, default=default_d_head)
        if size is None:
            if width % heads or width // heads > MAX_D_HEAD:
                why = " (head_dim is not given)" if d_head else ""
                most = f"and heads of at most {MAX_D_HEAD}"
                raise fields.error(d_model, f"a multiple of {n_head}, which is {heads}{why}, {most}")
            size = width // heads
        return {
            "n_vocab": fields.integer("vocab_size"),
            "n_layer": fields.integer(n_layer, maximum=_MAX_LAYERS),
            "n_head": heads,
            "n_kv_head": kv_heads,
            "d_model": width,
            "d_head": size,
            "d_ff": fields.integer(d_ff, default=REQUIRED if default_d_ff is None else default_d_ff * width),
        }

    def context(
        self, name: str = "max_position_embeddings", default: Any = REQUIRED, maximum: int = MAX_INT
    ) -> int:
        """Return the context of a model without length-dependent position scaling."""
        n_max: int = self.fields.integer(name, default=default, maximum=maximum)
        return self._chosen_context(n_max, n_max)

    def free_context(self, default: int) -> int:
        """Return the requested context, or ``default``, of a model with unbounded positions."""
        return self._chosen_context(default, _MAX_CONTEXT)

    def whole_context(self, name: str) -> int:
        """Return the context of a model with learned positions, which cannot be shortened."""
        n_max: int = self.fields.integer(name)
        if self._n_ctx is not None and self._n_ctx != n_max:
            raise InputError.of("n_ctx", self._n_ctx, f"None or {n_max}: the positions are learned")
        return n_max

    def _chosen_context(self, default: int, limit: int) -> int:
        if self._n_ctx is None:
            return default
        if not 1 <= self._n_ctx <= limit:
            raise InputError.of("n_ctx", self._n_ctx, f"1 to {limit}, the model's maximum")
        return self._n_ctx

    def activation(self, name: str, default: str) -> str:
        """Return the core's name of the activation function."""
        return self.fields.choice(name, ACTIVATIONS, default=default)

    def attention_bias(
        self, name: str = "attention_bias", *, default: bool = False, mlp: bool = False
    ) -> dict[str, Any]:
        """Return bias switches of attention, and of the MLP if ``mlp``, from one field."""
        bias = self.fields.boolean(name, default=default)
        names = ("qkv_bias", "out_bias", "mlp_bias") if mlp else ("qkv_bias", "out_bias")
        return dict.fromkeys(names, bias)

    def optional_number(self, name: str, absent: float = 0.0) -> float:
        """Return a number above 0; 0 if null, ``absent`` if absent."""
        if not self.fields.has(name):
            return absent
        return self.fields.number(name) if self.fields.raw(name) is not None else 0.0

    # ------------------------------------------------------------------------------------ layers

    def layer_types(
        self, n_layer: int, default: Sequence[str] | int, names: Sequence[str] = LAYER_TYPES
    ) -> list[str]:
        """Read ``layer_types``; ``default`` may be a period, whose last layer has full attention."""
        layer_types = self.fields.raw("layer_types")
        if layer_types is None:
            if not isinstance(default, int):
                return list(default)
            return ["sliding_attention" if (i + 1) % default else "full_attention" for i in range(n_layer)]
        if not isinstance(layer_types, list) or not all(isinstance(name, str) for name in layer_types):
            raise self.fields.error("layer_types", "a list of names")
        if len(layer_types) != n_layer:
            raise self.fields.error("layer_types", f"one name for each of {n_layer} layers")
        if not set(layer_types) <= set(names):
            raise self.fields.unsupported("layer_types", f"names among {', '.join(names)}")
        return layer_types

    def without_windows(self) -> dict[str, Any]:
        """Return no windows, ignoring the fields that describe them."""
        self.fields.skip("sliding_window", "max_window_layers", "layer_types")
        return {"sliding_window": 0}

    def windows(self, layer_types: Sequence[str], *, default: int | None = None) -> dict[str, Any]:
        """Read ``sliding_window``, and return ``windows`` too if only some layers have one."""
        self.fields.skip("sliding_window")
        if "sliding_attention" not in layer_types:
            return {"sliding_window": 0}
        absent = default if default is not None and not self.fields.has("sliding_window") else 0
        window = self.fields.integer("sliding_window", default=absent)
        if window == 0 or "full_attention" not in layer_types:
            return {"sliding_window": window}
        windows = [window if layer_type == "sliding_attention" else 0 for layer_type in layer_types]
        return {"sliding_window": window, "windows": windows}

    # ---------------------------------------------------------------------------------- rotation

    def rotation(
        self,
        d_head: int,
        *,
        layer_type: str | None = None,
        theta: float = 10_000.0,
        theta_name: str = "rope_theta",
        partial: bool = False,
        fraction: float = 1.0,
        fraction_name: str = "partial_rotary_factor",
        scaled: bool = True,
        base: float | None = None,
        alpha: bool = False,
        original_n_ctx: int | None = None,
        rope_types: Mapping[str, str] = _ROPE_TYPES,
    ) -> Rotation:
        """Read RoPE from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``.

        `layer_type`: Key inside ``rope_parameters`` if rotations differ by layer type. `theta`, `fraction`:
        Defaults. `theta_name`, `fraction_name`: Fields outside ``rope_parameters``. `original_n_ctx`:
        Overrides the original context. `partial`: Whether the family supports rotating a fraction of a head.
        `scaled`: Whether ``rope_scaling`` applies to these layers. `alpha`: Whether ``alpha`` makes dynamic
        scaling constant. `base`: Overrides the base. `rope_types`: Accepted names of scalings.
        """
        fields = self.fields
        n_max: int = fields.integer("max_position_embeddings")
        rope = self._rope_fields(layer_type, scaled)
        rope.skip("finetuned", "max_position_embeddings")  # a note on training, and a repeated size
        rope.skip("mrope_interleaved", "mrope_section")  # of images; all of a text's positions are equal
        stated = rope.number("rope_theta", default=fields.number(theta_name, default=theta))
        base = stated if base is None else base
        rope.skip("type", "rope_type")  # "type" is the older spelling
        key = "rope_type" if rope.raw("rope_type") is not None else "type"
        rope_type = rope.choice(key, rope_types, default="default")
        if partial or rope_type == "proportional":
            fraction = rope.number(
                "partial_rotary_factor", default=fields.number(fraction_name, default=fraction)
            )
            if fraction > 1.0:
                raise rope.error("partial_rotary_factor", "a number above 0 and at most 1")
        else:
            for source in (fields, rope):
                source.require("partial_rotary_factor", 1, because="rotary positions turn whole heads")
        size = d_head if rope_type == "proportional" else int(d_head * fraction)
        if size % 2 or size == 0:
            expected = f"an even number of rotated dimensions, not {size} of {d_head}: RoPE rotates pairs"
            raise fields.error("head_dim", expected)
        if rope_type == "proportional":
            frequencies = proportional_frequencies(d_head, base, fraction)
            frequencies = linear_scaled(frequencies, rope.number("factor", default=1.0))
            return Rotation(frequencies, 1.0, self._chosen_context(n_max, n_max))
        inner = rope.integer("original_max_position_embeddings", default=n_max)
        original = original_n_ctx or inner
        if rope_type == "longrope":
            return self._long(rope, size, base, n_max, original)
        if rope_type == "dynamic" and size <= 2:
            raise fields.error("head_dim", "more than 2 rotated dimensions with dynamic scaling")
        if alpha and rope_type == "dynamic" and rope.raw("alpha") is not None:
            stretched = base * rope.number("alpha", maximum=_MAX_SCALE) ** (size / (size - 2))
            rope.skip()
            return Rotation(rotary_frequencies(size, stretched), 1.0, self._chosen_context(n_max, n_max))
        if rope_type == "dynamic":  # for sequences of n_ctx tokens
            factor = rope.number("factor", maximum=_MAX_SCALE)
            n_ctx = self._chosen_context(n_max, int(n_max * factor))
            frequencies = dynamic_scaled(size, base, factor=factor, original_n_ctx=n_max, n_ctx=n_ctx)
            return Rotation(frequencies, 1.0, n_ctx)
        frequencies, factor = _fixed(rope, rope_type, size, base, n_max, original)
        return Rotation(frequencies, factor, self._chosen_context(n_max, n_max))

    def _rope_fields(self, layer_type: str | None, scaled: bool) -> Fields:
        """Return the object that describes RoPE, or an empty one."""
        fields = self.fields
        new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
        if old is not None and not fields.has("rope_parameters"):
            new = None
        if new is not None and old is not None:
            if not new.same_as(old):
                raise fields.error("rope_scaling", "nothing, or the same as 'rope_parameters'")
            old.skip()
        rope = new or (old if scaled else None) or fields.empty("rope_parameters")
        nested = [name for name in LAYER_TYPES if isinstance(rope.raw(name), dict)]
        if not nested:
            if layer_type is not None and rope is new:  # transformers would leave all of it out
                raise fields.error("rope_parameters", "an object for each of " + ", ".join(LAYER_TYPES))
            return rope
        if layer_type is None:
            for name in nested:
                rope.require(name, None, because="all layers share one rotation")
        return rope.object(layer_type or "") or rope.empty(layer_type or "")

    def _long(self, rope: Fields, size: int, base: float, n_max: int, original: int) -> Rotation:
        """Read LongRoPE: short factors up to the original context, long ones for a larger ``n_ctx``."""
        n_ctx = self._chosen_context(min(original, n_max), n_max)
        rope.skip("short_factor", "long_factor")
        factors = rope.numbers("long_factor" if n_ctx > original else "short_factor", size // 2)
        if original < 2:
            raise rope.error("original_max_position_embeddings", "at least 2 with LongRoPE")
        scale = rope.number("factor", default=n_max / original)
        default = 1.0 if scale <= 1.0 else math.sqrt(1.0 + math.log(scale) / math.log(original))
        attention = rope.number("attention_factor", default=default)
        return Rotation(linear_scaled(rotary_frequencies(size, base), factors), attention, n_ctx)


def _fixed(
    rope: Fields, rope_type: str, size: int, base: float, n_max: int, original: int
) -> tuple[list[float], float]:
    """Return frequencies and factor of length-independent scalings."""
    plain = rotary_frequencies(size, base)
    if rope_type == "linear":
        return linear_scaled(plain, rope.number("factor")), 1.0
    if rope_type == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        given = {name: rope.number(name) for name in names}
        if not given["low_freq_factor"] < given["high_freq_factor"]:
            low = f"{given['low_freq_factor']:g}"
            raise rope.error("high_freq_factor", f"more than low_freq_factor, which is {low}")
        return llama3_scaled(plain, original_n_ctx=original, **given), 1.0
    if rope_type == "yarn":
        if base <= 1.0:
            raise rope.error("rope_theta", "more than 1 with YaRN")
        factor = rope.number("factor", default=n_max / original)
        betas = {
            name: rope.number(name, default=default, maximum=_MAX_SCALE)
            for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
        }
        how: dict[str, Any] = betas | {"truncate": rope.boolean("truncate", default=True)}
        scaled = yarn_scaled(size, base, factor=factor, original_n_ctx=original, **how)
        recommended, scales = yarn_attention_factor(factor), ("mscale", "mscale_all_dim")
        if all([rope.raw(name) for name in scales]):  # a list: both are read
            first, second = (yarn_attention_factor(factor, rope.number(name)) for name in scales)
            recommended = first / second
        return scaled, rope.number("attention_factor", default=recommended)
    return plain, 1.0
