"""EXAONE 3 and 4."""

from __future__ import annotations

from typing import Any

from specdec.models.families.config_reader import ConfigReader
from specdec.models.families.family import Either, Family, Named, absent, named
from specdec.models.families.llama import LLAMA, OLMO2, llama_like

_PUBLISHED = named(
    "transformer.h.{i}", token_embedding="transformer.wte.weight", output_norm="transformer.ln_f",
    head="lm_head.weight", attn_norm=".ln_1", attn_q=".attn.attention.q_proj",
    attn_k=".attn.attention.k_proj", attn_v=".attn.attention.v_proj", attn_out=".attn.attention.out_proj",
    mlp_norm=".ln_2", mlp_gate=".mlp.c_fc_0", mlp_up=".mlp.c_fc_1", mlp_down=".mlp.c_proj",
)  # fmt: skip
# transformers writes the published names or Llama's.
_EXAONE: dict[str, Named | Either] = {
    name: Either((entry, LLAMA[name])) for name, entry in _PUBLISHED.items()
}


def _exaone(reader: ConfigReader) -> dict[str, Any]:
    """Read EXAONE 3: Llama's block with other names of fields and tensors."""
    fields = reader.fields
    return llama_like(
        reader,
        sizes=reader.sizes(n_layer=reader.name("num_hidden_layers", "num_layers"), absent_kv_head=8),
        theta=500_000.0,
        eps_field=reader.name("rms_norm_eps", "layer_norm_epsilon"),
        norm_eps=1e-5,
        activation=reader.activation(reader.name("hidden_act", "activation_function"), "silu"),
        bias=False,
        mlp_bias=fields.boolean("mlp_bias", default=False),
    )


def _exaone4(reader: ConfigReader) -> dict[str, Any]:
    """Read EXAONE 4: norms of outputs; with windows, no positions in the layers without."""
    fields, sizes = reader.fields, reader.sizes(absent_kv_head=32)
    n_layer = sizes["n_layer"]
    if fields.has("sliding_window") and fields.raw("sliding_window") is None:
        fields.skip("sliding_window_pattern", "layer_types")
        return _outputs_normed(reader, sizes)
    if fields.raw("layer_types") is not None:
        fields.skip("sliding_window_pattern")
        layer_types = reader.layer_types(n_layer, 1)
    else:
        layer_types = reader.layer_types(n_layer, fields.integer("sliding_window_pattern", default=4))
    rotations = [0 if layer_type == "sliding_attention" else -1 for layer_type in layer_types]
    return _outputs_normed(reader, sizes, rotations=rotations, **reader.windows(layer_types, default=4096))


def _outputs_normed(reader: ConfigReader, sizes: dict[str, Any], **switches: Any) -> dict[str, Any]:
    return llama_like(reader, sizes=sizes, norm_eps=1e-5, norm_position="after", qk_norm="head", **switches)


FAMILIES = {
    "ExaoneForCausalLM": Family(
        _exaone, _EXAONE, "exaone", absent(4096, 14336, 32, 32, 102400, 4096),
        renamed={"transformer.": "transformer."},  # without the prefix "model."
    ),
    "Exaone4ForCausalLM": Family(_exaone4, OLMO2, "exaone4", absent(4096, 16384, 32, 32, 102400, 2048)),
}  # fmt: skip
