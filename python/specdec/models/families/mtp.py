"""Multi-token prediction (MTP) blocks: where model files keep them, and how they read their inputs.

An MTP block (arXiv 2404.19737, 2412.19437) is a layer of the target with norms of a token's embedding and of
the target's hidden state before it, a projection of both, and a norm before the target's head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from specdec.models.families.family import Array, Config, Named, Shape, plus_one


@dataclass(frozen=True)
class MtpLayout:
    """Names of an MTP block's tensors in the files of a family.

    `count`: Field of config.json with the number of blocks. `block`: Prefix of the layer's tensors, which
    otherwise have the names of the family's layer 0; {n} is the number of the target's layers. `token_norm`,
    `feature_norm`, `projection`, `output_norm`: Tensors without ".weight"; a dot stands for `block`.
    `root`: Prefix of all MTP tensors; empty: `block`. `copies`: Unread copies of the target's embedding and
    head. `norm`: Type of the entries of norms. `features_first`: The projection reads the hidden state first.
    """

    count: str
    block: str
    token_norm: str
    feature_norm: str
    projection: str
    output_norm: str
    root: str = ""
    copies: tuple[str, ...] = ()
    norm: Callable[[str], Named] = Named
    features_first: bool = False

    def roots(self, n_layer: int, n_blocks: int) -> tuple[str, ...]:
        """Return the prefixes of the tensors of all blocks of a target."""
        root = self.root or self.block
        if "{n}" not in root:
            return (root,)
        return tuple(root.format(n=n_layer + block) for block in range(n_blocks))

    def entries(self, block: str) -> dict[str, Named]:
        """Return the entries of the tensors outside the layer; `block` replaces the layout's."""

        def full(name: str) -> str:
            return block + name[1:] if name.startswith(".") else name

        projection = full(self.projection)
        return {
            "token_norm": self.norm(full(self.token_norm)),
            "feature_norm": self.norm(full(self.feature_norm)),
            "output_norm": self.norm(full(self.output_norm)),
            "feature_projection": _turned(projection) if self.features_first else Named(projection),
        }


def _turned(name: str) -> Named:
    """Return the entry of a projection whose columns are the hidden state's, then the embedding's."""

    def view(array: Array, shape: Shape, config: Config) -> Array:
        return np.roll(array, shape[1] // 2, axis=1)

    return Named(name, view, keeps_rows=False)


_NEXTN: Final = "num_nextn_predict_layers"

MIMO: Final = MtpLayout(
    _NEXTN, "model.mtp_layers.0.", ".token_layernorm", ".hidden_layernorm", ".input_proj", ".final_layernorm",
    root="model.mtp_layers.", features_first=True,
)  # fmt: skip
QWEN: Final = MtpLayout(
    "mtp_num_hidden_layers", "mtp.layers.0.", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
    "mtp.norm", root="mtp.", norm=plus_one,
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
