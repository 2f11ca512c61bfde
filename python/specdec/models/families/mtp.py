"""Multi-token prediction (MTP) blocks: where model files keep them, and how they read their inputs.

An MTP block (arXiv 2404.19737, 2412.19437) is a layer of the target with norms of a token's embedding and of
the target's hidden state before it, a projection of both, and a norm before the target's head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specdec.models.families.family import MtpLayout, plus_one

_NEXTN: Final = ("num_nextn_predict_layers", "num_mtp_layers")

MIMO: Final = MtpLayout(
    _NEXTN, "model.mtp_layers.0.", ".token_layernorm", ".hidden_layernorm", ".input_proj", ".final_layernorm",
    root="model.mtp_layers.", features_first=True,
)  # fmt: skip
QWEN: Final = MtpLayout(
    ("mtp_num_hidden_layers",), "mtp.layers.0.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
    "mtp.fc", "mtp.norm", root="mtp.", norm=plus_one,
)  # fmt: skip
DEEPSEEK: Final = MtpLayout(
    _NEXTN, "model.layers.{n}.", ".enorm", ".hnorm", ".eh_proj", ".shared_head.norm",
    copies=(".embed_tokens.weight", ".shared_head.head.weight"),
)  # fmt: skip
"""DeepSeek V3, GLM 4.5 and others."""
GGUF: Final = MtpLayout(
    _NEXTN, "blk.{n}.", ".nextn.enorm", ".nextn.hnorm", ".nextn.eh_proj", ".nextn.shared_head_norm",
    copies=(".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight"),
)  # fmt: skip
"""All architectures of GGUF files, whose converter orders columns and adds 1 to norms."""

LAYOUTS: Final[Mapping[str, MtpLayout]] = {"MiMo": MIMO, "Qwen": QWEN, "DeepSeek": DEEPSEEK, "GGUF": GGUF}
