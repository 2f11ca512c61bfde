"""Every encoder-decoder against transformers: tiny random models, saved by it and loaded as they are.

The oracle runs in float32 with its "eager" attention, one text without padding at a time.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import torch, transformers
from specdec import reference
from specdec.checkpoints import open_checkpoint
from worlds.canonical import step_by_step
from worlds.families import CONFIGS, ENCODER_DECODERS, read_config

pytestmark = pytest.mark.oracle

RELATIVE = 2e-5
"""Of the largest number."""

# Tokens of sources and texts: one, some, and more than the furthest distance that a bucket begins at.
LENGTHS = [(1, 5), (60, 1), (9, 44), (70, 60)]
FAR = [(150, 20), (20, 150)]


def build(name: str, folder: Path) -> Any:
    """A random model, every parameter away from its initial value, saved by transformers."""
    torch.manual_seed(7)
    kind = getattr(transformers, name.split()[0])
    network = kind._from_config(ENCODER_DECODERS[name](), attn_implementation="eager").float().eval()
    if "own head" in name:
        network.lm_head.weight = torch.nn.Parameter(torch.zeros_like(network.lm_head.weight))
    with torch.no_grad():
        for part, parameter in network.named_parameters():
            if "embed_positions" in part and name.startswith("Marian"):
                continue  # sines
            if parameter.ndim == 1 or "norm" in part:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * scale(part, name))
        if "final_logits_bias" in dict(network.named_buffers()):
            network.final_logits_bias.copy_(torch.randn_like(network.final_logits_bias) * 0.1)
        if name.startswith("M2M100"):
            network.get_input_embeddings().weight[1] = 0.0  # so that no text has padding
    if "begun" in name:
        network.generation_config.forced_bos_token_id = 7
    network.generation_config.forced_eos_token_id = None  # warned of, see test_unused_fields.py
    copy.deepcopy(network).save_pretrained(folder)
    return network


def scale(part: str, name: str) -> float:
    """Of the weights of a part: such that texts are not one token again and again.

    What all tokens have in common, such as what comes from the source, must not outweigh the rest. Scores of
    T5 have no factor.
    """
    if "T5" in name:
        return 0.1 if ".q." in part else 0.2
    if "embed_positions" in part:
        return 1.0
    if "encoder_attn" in part:
        return 0.1
    return 0.2 if "shared" in part or "embed" in part else 0.3


class Case:
    """A model of transformers, and the folder that it was saved to."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.network = build(name, folder)
        self.checkpoint = open_checkpoint(folder)
        self.config = self.checkpoint.config
        self.model = specdec.load(folder)
        self.tensors = {name: array for name, array, _ in self.checkpoint.tensors()}
        self.lengths = LENGTHS + (FAR if self.config["position"] == "none" else [])

    def source(self, n: int) -> np.ndarray:
        return np.random.default_rng(n).integers(3, self.config["encoder"]["n_vocab"], n)

    def text(self, n: int) -> np.ndarray:
        """Without padding tokens, which M2M-100 gives no position."""
        return np.random.default_rng(n + 1).integers(3, self.config["n_vocab"], n)


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


def ids_of(ids: np.ndarray) -> Any:
    return torch.from_numpy(ids.astype(np.int64))[None]


def oracle_encoded(network: Any, source: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network.get_encoder()(input_ids=ids_of(source)).last_hidden_state[0].numpy()


def oracle_logits(network: Any, source: np.ndarray, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found = network(input_ids=ids_of(source), decoder_input_ids=ids_of(ids), use_cache=False)
    return found.logits[0].numpy()


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.05 * np.abs(expected).max()  # numbers with something in them
    np.testing.assert_allclose(found, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())


def test_every_architecture_with_an_encoder_has_a_case() -> None:
    with_encoder = {name for name, config in CONFIGS.items() if read_config(config, name).get("encoder")}
    assert {name.split()[0] for name in ENCODER_DECODERS} == with_encoder


def test_encoders_equal_transformers(case: Case) -> None:
    """Those of the reference, of the core and of the core with OpenBLAS."""
    assert case.checkpoint.architecture == case.name.split()[0]
    blas = specdec.load(case.folder, "f32", prefill="blas")
    for n_source, _ in case.lengths:
        source = case.source(n_source)
        expected = oracle_encoded(case.network, source)
        assert_near(reference.encode(case.config, case.tensors, source.tolist()), expected)
        for model in (case.model, blas):
            assert_near(model.core.encode(source), expected)


def test_logits_equal_transformers(case: Case) -> None:
    """A prompt at once, and token by token; with OpenBLAS; those of the reference."""
    blas = specdec.load(case.folder, "f32", prefill="blas")
    for n_source, n_text in case.lengths:
        source, ids = case.source(n_source), case.text(n_text)
        expected = oracle_logits(case.network, source, ids)
        found = case.model.logits(ids, source)
        assert_near(found, expected)
        assert np.array_equal(step_by_step(case.model.core, ids, source), found)
        assert_near(blas.logits(ids, source), expected)
        near = reference.logits(case.config, case.tensors, ids.tolist(), source=source.tolist())
        assert_near(near, expected)


def oracle_texts(case: Case, source: list[int], n_new: int, **options: Any) -> Any:
    """What ``generate`` of transformers gives for a source, with scores, and past end of text."""
    named = case.network.generation_config
    with torch.no_grad():
        return case.network.generate(
            torch.tensor([source]), max_new_tokens=n_new + len(case.model.decoder_start) - 1, do_sample=False,
            eos_token_id=None, forced_eos_token_id=None, pad_token_id=named.pad_token_id,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip


def test_greedy_texts_equal_transformers(case: Case) -> None:
    """Sources of unequal lengths in one batch, plain and by speculation."""
    sources = [case.source(n).tolist() for n in (3, 21, 40)]
    named = case.network.generation_config
    start = [named.decoder_start_token_id, named.forced_bos_token_id]
    assert list(case.model.decoder_start) == [token for token in start if token is not None]
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    found = specdec.generate(case.model, None, sources, **options)
    guessed = specdec.generate(case.model, case.model, sources, gamma=3, **options)
    for source, result, other in zip(sources, found, guessed, strict=True):
        expected = oracle_texts(case, source, 24).sequences[0].tolist()
        assert [*case.model.decoder_start, *result.tokens] == expected
        assert other.tokens == result.tokens


def test_texts_of_a_least_length_equal_transformers(case: Case, tmp_path: Path) -> None:
    """Of the files: a token that they force is one of the new tokens."""
    source = case.source(21).tolist()
    end = specdec.generate(case.model, None, source, max_new_tokens=1, ignore_eos=True).tokens[0]
    folder = shutil.copytree(case.folder, tmp_path / "folder")
    file = folder / "generation_config.json"
    said = json.loads(file.read_text()) | {"eos_token_id": end}
    for least in (1, 2, 5):
        file.write_text(json.dumps(said | {"min_new_tokens": least}))
        model = specdec.load(folder)
        found = specdec.generate(model, None, source, max_new_tokens=9, **model.default_sampling)
        with torch.no_grad():
            expected = case.network.generate(
                torch.tensor([source]), max_new_tokens=8 + len(model.decoder_start), min_new_tokens=least,
                eos_token_id=end, forced_eos_token_id=None, do_sample=False,
            )  # fmt: skip
        assert [*model.decoder_start, *found.tokens] == expected[0].tolist()


def test_beams_equal_transformers(case: Case) -> None:
    """Where scores are further apart than the sums of float32 logarithms are exact."""
    source = case.source(17).tolist()
    found = specdec.beam_search(case.model, None, source, width=4, max_new_tokens=10, ignore_eos=True)
    theirs = oracle_texts(case, source, 10, num_beams=4, num_return_sequences=4, length_penalty=0.0)
    scores = [beam.score for beam in found.beams]
    np.testing.assert_allclose(scores, theirs.sequences_scores.numpy(), rtol=0, atol=1e-3)
    assert min(np.diff(sorted(scores))) > 1e-4
    for beam, expected in zip(found.beams, theirs.sequences, strict=True):
        assert [*case.model.decoder_start, *beam.tokens] == expected.tolist()
