"""Numbers that are not finite: weights are checked when they are loaded, but their products may overflow.

Nothing is decoded from such numbers. The error names the model, the first layer and the position, and the
text before it is kept.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import NotFiniteError, _core, drafts
from tiny_models import llama_config, tensors_for, write_hf

SPIKE = 7
"""The token whose row overflows."""
FEATURE = 3
"""Only this token has it, and no layer changes it."""
PROMPT = [1, 9, 30]
SCRIPT = [4, 11, 2, 40, SPIKE, 5, 6, 8]
LAYERS = 4


def model_with_spike(
    folder: Path, layer: int | str | None, *, seed: int = 1, dtype: str = "f32"
) -> specdec.Model:
    """Random weights; the row of the token `SPIKE` overflows in `layer`, or in the "head"."""
    settings = llama_config(num_hidden_layers=LAYERS)
    tensors = tensors_for(settings, seed)
    tensors["model.embed_tokens.weight"][:, FEATURE] = 0.0
    tensors["model.embed_tokens.weight"][SPIKE, FEATURE] = 1.0
    for name, tensor in tensors.items():
        if ".o_proj." in name or ".down_proj." in name:
            tensor[FEATURE] = 0.0  # its row of the weight, or its bias
        if "norm" in name:
            tensor[:] = 1.0
    if isinstance(layer, int):
        for name in ("gate_proj", "up_proj"):
            tensors[f"model.layers.{layer}.mlp.{name}.weight"][0, FEATURE] = 1e30
    elif layer == "head":
        tensors["lm_head.weight"][5, FEATURE] = 3e38
        tensors["model.norm.weight"][FEATURE] = 1e6
    return specdec.load(write_hf(folder, settings, tensors), dtype, tokenizer=False)


def follow(script: Sequence[int]) -> Callable[[np.ndarray, list[int]], np.ndarray]:
    """A transform that lets the target write this text."""
    return lambda probs, tokens: np.eye(len(probs))[script[len(tokens) - len(PROMPT)]]


class Guesses:
    """A draft that always guesses the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> list[int]:
        return list(self.tokens[:budget])


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return model_with_spike(tmp_path_factory.mktemp("spiked"), 2)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return model_with_spike(tmp_path_factory.mktemp("sound"), None)


POSITION = len(PROMPT) + SCRIPT.index(SPIKE)


@pytest.mark.parametrize("draft", [None, Guesses(4, 11, 2)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled", "classical"])
def test_the_text_before_is_kept(spiked: specdec.Model, draft: Any, temperature: float, verify: str) -> None:
    """Some twenty rounds fit into one call of the core, the one that fails among them."""
    with pytest.raises(NotFiniteError, match=rf"the target: .* layer 2 .* position {POSITION} ") as caught:
        specdec.generate(
            spiked, draft, PROMPT, max_new_tokens=len(SCRIPT), temperature=temperature, verify=verify, seed=1,
            transform=follow(SCRIPT), n_threads=1, logits=True,
        )  # fmt: skip
    result = caught.value.result
    assert isinstance(result, specdec.Result)
    for drawn in (result.figure(), result._repr_html_()):
        assert "ended by: a number that is not finite" in drawn
    assert result.tokens == SCRIPT[: SCRIPT.index(SPIKE) + 1]
    assert result.finish_reason == "error" and result.stop is None
    assert result.logits is not None and result.logits.shape == (len(result.tokens), 61)
    assert np.isfinite(result.logits).all()
    assert result.trace.n_calls == len(result.trace.rounds)


@pytest.mark.parametrize("layer", [0, 1, 3, "head"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_first_layer_is_named(tmp_path: Path, layer: int | str, n_threads: int) -> None:
    model = model_with_spike(tmp_path, layer)
    what = "so it is the head that overflows" if layer == "head" else rf"layer {layer} \(of 0 to 3\)"
    for call in (model.logits, model.score):
        with pytest.raises(NotFiniteError, match=f"the model: .*{what}") as caught:
            call([1, 2, 3, SPIKE, 4, 5], n_threads=n_threads)
        assert "position 3" in str(caught.value)
        assert caught.value.result is None
        assert np.isfinite(call([1, 2, 3, 4, 5, 6])).all()


def test_in_a_prompt(spiked: specdec.Model) -> None:
    """Long ones too, of which no logits are asked for; nothing has been written then."""
    prompt = [1] * 30 + [SPIKE, 2, 3]
    with pytest.raises(NotFiniteError, match="layer 2 .* position 30 ") as caught:
        specdec.generate(spiked, None, [PROMPT, prompt], max_new_tokens=3)
    assert [result.tokens for result in caught.value.result] == [[], []]
    with pytest.raises(NotFiniteError, match="layer 2 .* position 2 "):
        specdec.generate(spiked, None, [1, 2, SPIKE], max_new_tokens=3)
    with pytest.raises(NotFiniteError, match="layer 2 .* position 2 "):
        specdec.beam_search(spiked, None, [1, 2, SPIKE], width=2, max_new_tokens=3)


def test_every_sequence_of_a_batch_keeps_its_text(spiked: specdec.Model) -> None:
    """The second has ended before the third, which took its place, comes to the token."""

    def script(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        ends = tokens[0] == 3 and len(tokens) == 4
        return np.eye(len(probs))[SPIKE if ends else 20 + len(tokens)]

    prompts = [[1, 9, 30], [2, 9], [3, 9]]
    limits: dict[str, Any] = {"max_new_tokens": 8, "stop": 25, "batch_size": 2, "n_threads": 1}
    with pytest.raises(NotFiniteError, match="layer 2 .* position 4 ") as caught:
        specdec.generate(spiked, None, prompts, transform=script, **limits)
    first, second, third = caught.value.result
    assert (first.tokens, first.finish_reason) == ([23, 24, 25], "stop")
    assert (second.tokens, second.finish_reason) == ([22, 23, 24, 25], "stop")
    assert (third.tokens, third.finish_reason) == ([22, 23, SPIKE], "error")


@pytest.mark.skipif(not hasattr(_core, "_arena_guard"), reason="needs a build with SPECDEC_TESTING=ON")
def test_a_batch_whose_first_sequence_is_committed_already(tmp_path: Path) -> None:
    """The layer is looked for in the second sequence, when the first has no pending nodes any more.

    In a process of its own, with forbidden pages behind every array.
    """
    script = f"""
import pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np, specdec
from specdec import _core
from test_overflow import SPIKE, model_with_spike

model = model_with_spike(pathlib.Path({str(tmp_path)!r}), 2)
_core._arena_guard(True)

class Draft:
    def propose(self, sequence, tokens, budget):
        return [4] * budget

def script(probs, tokens):
    return np.eye(len(probs))[SPIKE if tokens[0] == 2 else 4 + len(tokens) % 9]

try:
    specdec.generate(model, Draft(), [[1, 9, 30], [2, 9, 30]], gamma=16, max_new_tokens=60, transform=script,
                     temperature=1.0, batch_size=2, n_threads=1)
except specdec.NotFiniteError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "the output of layer 2 (of 0 to 3) at position 3 is not finite" in done.stdout


@pytest.mark.parametrize("stop", ["zz", "CD"])  # "CD" might begin with the last letter, "C"
def test_a_stream_has_given_the_text_before(spiked: specdec.Model, stop: str) -> None:
    class Letters:
        """A token is a letter."""

        eos_ids: tuple[int, ...] = ()
        bos_id = None

        def encode(self, text: str, **options: Any) -> list[int]:
            return [ord(letter) - 60 for letter in text]

        def decode(self, ids: Sequence[int], **options: Any) -> str:
            return "".join(chr(60 + token) for token in ids)

        def __len__(self) -> int:
            return 61

    model = specdec.Model(spiked.core, spiked.config, Letters(), spiked.path, spiked.architecture)  # type: ignore[arg-type]
    stream = specdec.stream(
        model, None, PROMPT, max_new_tokens=len(SCRIPT), transform=follow(SCRIPT), stop=stop, n_threads=1
    )
    pieces = []
    with pytest.raises(NotFiniteError):
        for piece in stream:
            pieces.append(piece)
    wanted = SCRIPT[: SCRIPT.index(SPIKE) + 1]
    assert "".join(pieces) == stream.result.text == Letters().decode(wanted)
    assert stream.result.tokens == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_a_guess_whose_row_overflows_gives_no_wrong_text(
    spiked: specdec.Model, temperature: float, verify: str
) -> None:
    """Plain decoding never comes to the guess. It is named, and what was written before it is right."""
    script = [4, 11, 2, 40, 5, 6, 8, 12]
    how: dict[str, Any] = {"max_new_tokens": 8, "temperature": temperature, "verify": verify, "seed": 2}
    plain = specdec.generate(spiked, None, PROMPT, transform=follow(script), **how)
    assert plain.tokens == script
    with pytest.raises(NotFiniteError, match=rf"the target: .* layer 2 .* position {len(PROMPT)} ") as caught:
        specdec.generate(spiked, Guesses(SPIKE, 3), PROMPT, transform=follow(script), **how)
    assert caught.value.result.tokens == []


@pytest.mark.parametrize(
    "draft",
    [
        lambda model: model,
        lambda model: drafts.ModelDraft(model, tree=drafts.StaticTree((2, 2))),
        lambda model: drafts.ModelDraft(model, draft=Guesses(1, 2)),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_overflows_is_named(
    sound: specdec.Model, tmp_path: Path, draft: Any, temperature: float
) -> None:
    broken = draft(model_with_spike(tmp_path, 1))
    for verify in ("rejection", "coupled"):
        with pytest.raises(NotFiniteError, match=rf"the draft: .* layer 1 .* position {POSITION} ") as caught:
            specdec.generate(
                sound, broken, PROMPT, max_new_tokens=8, temperature=temperature, verify=verify, seed=3,
                transform=follow(SCRIPT),
                draft_sampling=specdec.Sampling(temperature, logit_bias={SPIKE: -np.inf}),
            )  # fmt: skip
        tokens = caught.value.result.tokens
        assert tokens == SCRIPT[: len(tokens)] and SPIKE in tokens


def test_in_bf16(tmp_path: Path) -> None:
    model = model_with_spike(tmp_path, 1, dtype="bf16")
    with pytest.raises(NotFiniteError, match="layer 1 .* position 1 "):
        model.logits([3, SPIKE, 5])


def test_a_failed_prefill_leaves_nothing_behind(spiked: specdec.Model) -> None:
    decoder = _core.Decoder(spiked.core, capacity=8, max_nodes=1)
    decoder.prefill([1, 2])
    with pytest.raises(NotFiniteError):
        decoder.prefill([3, SPIKE], finite=True)
    assert decoder.n_committed == 2
    again = decoder.prefill([3, 4], logits=True, finite=True)
    assert np.array_equal(again, spiked.logits([1, 2, 3, 4])[2:])
