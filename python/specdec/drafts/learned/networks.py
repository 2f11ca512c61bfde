"""Shared PyTorch code of draft networks: the target's tensors, transformers decoders, divergences.

The divergences follow DistillSpec (Zhou et al., arXiv 2310.08461): P is the target's next-token distribution,
Q the draft's. A log-probability of -inf means probability 0.

Importing this module needs torch (``pip install 'specdec-cpu[train]'``); decoding does not.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec.atomic_file import replacing
from specdec.divergences import DivergenceName
from specdec.drafts.learned.folder import LearnedWeights
from specdec.errors import CheckpointError, InputError, MissingPackageError
from specdec.models.checkpoints import CanonicalTensor, open_checkpoint
from specdec.models.number_formats import widened

if TYPE_CHECKING:
    from specdec.models.model import Model

try:
    import torch as torch
    import torch.nn.functional as F  # noqa: N812
    from torch import Tensor, nn
except ImportError:
    raise MissingPackageError(
        "training needs torch, which is not installed: pip install 'specdec-cpu[train]'"
    ) from None

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip


def transformers() -> Any:
    """Import transformers."""
    try:
        import transformers
    except ImportError:
        message = "this training needs transformers, which is not installed: pip install 'specdec-cpu[train]'"
        raise MissingPackageError(message) from None
    return transformers


@contextmanager
def silent() -> Iterator[None]:
    """Disable the progress bars of transformers."""
    settings = transformers().utils.logging
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()


def open_decoder(folder: Path) -> Any:
    """Open the decoder of a Hugging Face folder in f32 for training."""
    library = transformers()
    try:
        with silent():
            opened = library.AutoModelForCausalLM.from_pretrained
            network = opened(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        message = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: transformers cannot read it: {message}") from error
    return network.train()


def hf_folder(target: Model) -> Path:
    """Return the Hugging Face folder of a target; refuse other file formats."""
    if not (target.path / "config.json").is_file():
        expected = "a Hugging Face folder, as transformers reads the target for this training"
        raise InputError.of("target", target.path, expected, str(target.path))
    return target.path


class TargetEnds:
    """A target's frozen token table and head [n_vocab, d_model], in no state dict; one tensor if tied."""

    def __init__(
        self, table: Tensor, head: Tensor | None = None, bias: Tensor | None = None, scale: float = 1.0,
        softcap: float = 0.0,
    ):  # fmt: skip
        self.table = table
        self.head = table if head is None else head
        self.bias, self.scale, self.softcap = bias, scale, softcap

    @classmethod
    def of(cls, target: Model) -> TargetEnds:
        """Read the tensors from the target's checkpoint, before any quantization."""
        wanted = {"token_embedding", "head", "head_bias"}
        tensors = open_checkpoint(target.path, tokenizer=False).tensors()
        found = {tensor[0]: as_torch(tensor) for tensor in tensors if tensor[0] in wanted}
        scale, softcap = float(target.config.logit_scale), float(target.config.logit_softcap)
        return cls(found["token_embedding"], found.get("head"), found.get("head_bias"), scale, softcap)

    def embed(self, ids: Tensor) -> Tensor:
        """Return rows of the token table [..., d_model], as stored."""
        return F.embedding(ids, self.table)

    def logits(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return logits [..., n_vocab], or [..., n] of `ids` [n], of the head's input `x` [..., d_model]."""
        head = self.head if ids is None else self.head[ids]
        bias = self.bias if self.bias is None or ids is None else self.bias[ids]
        y = F.linear(x, head.to(x.dtype), None if bias is None else bias.to(x.dtype))
        if self.scale != 1.0:
            y = y * self.scale
        return self.softcap * torch.tanh(y / self.softcap) if self.softcap else y


class OnTarget(nn.Module):
    """A network with a target's token table and head; `draft_ids` is a reduced vocabulary, ascending."""

    def __init__(self, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__()
        self.ends, self.draft_ids = ends, draft_ids

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the target's tensors too, except parameters, which move with their own module."""
        tied = self.ends.head is self.ends.table
        for name in ("table", "bias") if tied else ("table", "head", "bias"):
            tensor = getattr(self.ends, name)
            if tensor is not None and not isinstance(tensor, nn.Parameter):
                setattr(self.ends, name, fn(tensor))
        if tied:
            self.ends.head = self.ends.table
        if self.draft_ids is not None:
            self.draft_ids = fn(self.draft_ids)
        return super()._apply(fn, recurse)


def as_torch(tensor: CanonicalTensor) -> Tensor:
    """Convert a tensor of a checkpoint to f32."""
    _, array, number_format = tensor
    return torch.from_numpy(np.array(widened(array, number_format)))


def tensors_of(network: Any) -> dict[str, Tensor]:
    """Return the weights of a network by their names in the draft's folder."""
    found: dict[str, Tensor] = getattr(network, "tensors", network.state_dict)()
    return found


def numbers_of(network: Any) -> dict[str, NDArray[np.float32]]:
    """Return f32 copies of the weights, as `LearnedWeights` takes them."""
    return {
        name: tensor.detach().float().cpu().numpy().copy() for name, tensor in tensors_of(network).items()
    }


def take_weights(network: Any, stored: LearnedWeights) -> None:
    """Copy the weights of a draft's folder into a network with the same names and shapes."""
    own = tensors_of(network)
    with torch.no_grad():
        for tensor in stored.tensors({name: tuple(weight.shape) for name, weight in own.items()}):
            own[tensor[0]].copy_(as_torch(tensor))


def draft_ids_of(stored: LearnedWeights | None) -> Tensor | None:
    """Return the token ids of a stored draft's vocabulary; None: all."""
    return None if stored is None or stored.tokens is None else torch.from_numpy(stored.tokens).long()


def stored_tensors(tensors: Mapping[str, Tensor], weights: str) -> dict[str, Tensor]:
    """Convert floating-point tensors to the file format `weights`, "bf16" or "f32"."""
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[weights]
    return {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }


def write_decoder(network: Any, target: Model, folder: Path, weights: str) -> None:
    """Write a transformers decoder as a Hugging Face folder, with the target's tokenizer."""
    tensors = stored_tensors(network.state_dict(), weights)
    folder.mkdir(parents=True, exist_ok=True)
    with silent(), tempfile.TemporaryDirectory(dir=folder) as written:
        network.save_pretrained(written, state_dict=tensors)
        for path in sorted(Path(written).iterdir()):
            path.replace(folder / path.name)
    for name in _TOKENIZER_FILES:
        if (target.path / name).is_file():
            with (target.path / name).open("rb") as source, replacing(folder / name) as file:
                shutil.copyfileobj(source, file)


_LEAST = -1e4  # replaces a log-probability of -inf, for finite products
_LEAST_REST = 1e-12  # smallest probability of all other tokens, for a finite logarithm
_VARIATION_SCALE = 4.0  # total variation is at most 1; the other divergences are in nats


def forward_kl(target: Tensor, draft: Tensor) -> Tensor:
    """Return KL(P ‖ Q) = Σ P ln(P / Q) of log-probabilities [..., n], in nats (Hinton et al. 2015).

    Where only Q is 0, the term is large but finite and has no gradient.
    """
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    return (target.exp() * (target - draft)).sum(-1)


def jensen_shannon(target: Tensor, draft: Tensor, beta: float = 0.5) -> Tensor:
    """Return the generalized Jensen-Shannon divergence β KL(P ‖ M) + (1 − β) KL(Q ‖ M), M = β P + (1 − β) Q.

    Divided by β it tends to KL(P ‖ Q) as β tends to 0, and divided by 1 − β to KL(Q ‖ P) as β tends to 1.
    """
    target, draft = target.clamp(min=_LEAST), draft.clamp(min=_LEAST)
    mixture = (target + math.log(beta)).logaddexp(draft + math.log1p(-beta))
    return beta * forward_kl(target, mixture) + (1.0 - beta) * forward_kl(draft, mixture)


_FUNCTIONS: dict[DivergenceName, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fkl": lambda target, draft, beta: forward_kl(target, draft),
    "rkl": lambda target, draft, beta: forward_kl(draft, target),
    "jsd": jensen_shannon,
    # The rejection probability, 1 - β of Theorem 3.5 (arXiv 2211.17192).
    "tvd": lambda target, draft, beta: (target.exp() - draft.exp()).abs().sum(-1) / 2.0,
}


@dataclass(frozen=True)
class TargetDistribution:
    """The target's next-token distribution at every position, complete or for its most probable tokens."""

    log_probs: Tensor  # [..., n_vocab]; or [..., k + 1]: k tokens, and the total of all others
    tokens: Tensor | None = None  # [..., k] ids of the k tokens; None: the distribution is complete
    temperature: float = 1.0  # divisor of the logits, of the draft's too

    @classmethod
    def of_logits(
        cls, logits: Tensor, top: int | None = None, temperature: float = 1.0
    ) -> TargetDistribution:
        """Make distributions from logits [..., n_vocab]: complete, or the `top` tokens and the rest."""
        log_probs = (logits.float() / temperature).log_softmax(-1)
        if top is None or top >= logits.shape[-1]:
            return cls(log_probs, None, temperature)
        kept, tokens = log_probs.topk(top, dim=-1)
        return cls(torch.cat((kept, _log_rest(kept)), dim=-1), tokens, temperature)

    @classmethod
    def of_top(cls, tokens: Tensor, log_probs: Tensor, rest: Tensor) -> TargetDistribution:
        """Make distributions from ids and log-probabilities [..., k], and the mass `rest` [...] of others."""
        others = rest.clamp(min=_LEAST_REST).log()[..., None]
        return cls(torch.cat((log_probs, others), dim=-1), tokens)

    def __getitem__(self, index: Any) -> TargetDistribution:
        """Index all dimensions but the last."""
        tokens = None if self.tokens is None else self.tokens[index]
        return TargetDistribution(self.log_probs[index], tokens, self.temperature)

    def to(self, device: torch.device | str) -> TargetDistribution:
        """Copy the distributions to `device`."""
        tokens = None if self.tokens is None else self.tokens.to(device)
        return TargetDistribution(self.log_probs.to(device), tokens, self.temperature)

    def of_draft(self, logits: Tensor) -> Tensor:
        """Return a draft's log-probabilities in the same layout, from its logits [..., n_vocab]."""
        log_probs = (logits.float() / self.temperature).log_softmax(-1)
        if self.tokens is None:
            return log_probs
        kept = log_probs.gather(-1, self.tokens)
        return torch.cat((kept, _log_rest(kept)), dim=-1)


def _log_rest(log_probs: Tensor) -> Tensor:
    """Return the log of the remaining probability mass, [..., 1]."""
    return (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=_LEAST_REST).log()


@dataclass(frozen=True)
class Objective:
    """The loss at every position, a weighted sum of divergences; `beta` applies to "jsd"."""

    weights: Mapping[DivergenceName, float]
    beta: float = 0.5

    @classmethod
    def of_shares(cls, shares: Mapping[DivergenceName, float], beta: float = 0.5) -> Objective:
        """Weight divergences by their shares, scaled to similar gradients."""
        scales = {"tvd": _VARIATION_SCALE}
        return cls({name: share * scales.get(name, 1.0) for name, share in shares.items()}, beta)

    def __call__(self, target: TargetDistribution, logits: Tensor) -> Tensor:
        """Return the loss [...] of a draft's logits [..., n_vocab] at the same positions."""
        if logits.dim() > 2:  # one text at a time uses less memory and is twice as fast
            return torch.stack([self(target[i], part) for i, part in enumerate(logits.unbind(0))])
        draft, total = target.of_draft(logits), logits.new_zeros((), dtype=torch.float32)
        for name, weight in self.weights.items():
            if not weight:
                continue
            total = total + weight * _FUNCTIONS[name](target.log_probs, draft, self.beta)
        return total


def scattered(logits: Tensor, draft_ids: Tensor | None, n_vocab: int) -> Tensor:
    """Scatter logits of the tokens `draft_ids` [n_draft_vocab] to [..., n_vocab], with -inf elsewhere."""
    if draft_ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], n_vocab), float("-inf"))
    return whole.index_copy(-1, draft_ids, logits)


def reachable(target: TargetDistribution, draft_ids: Tensor | None, n_vocab: int) -> TargetDistribution:
    """Drop tokens outside the draft's vocabulary, whose losses are constant; gradients do not change."""
    if draft_ids is None:
        return target
    never = torch.ones(n_vocab, dtype=torch.bool, device=draft_ids.device).index_fill(0, draft_ids, False)
    if target.tokens is not None:
        rest = torch.zeros_like(target.tokens[..., :1], dtype=torch.bool)
        never = torch.cat((never[target.tokens], rest), dim=-1)
    log_probs = target.log_probs.masked_fill(never, float("-inf"))
    return TargetDistribution(log_probs, target.tokens, target.temperature)
