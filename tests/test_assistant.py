"""Gemma 4's assistants as drafts: against transformers, and outputs that stay those of plain decoding."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import torch, transformers
from specdec import drafts
from specdec.errors import CheckpointError, InputError, UnsupportedModelError, VocabularyMismatchError
from worlds.assistants import PAIRS, WINDOW, assistant_tensors, write_assistant, write_pair
from worlds.folders import write_hf
from worlds.learned import all_records, check_distributions, open_session

PROMPT = [5, 17, 201, 33, 8, 5, 17, 90, 4, 250, 77, 5, 17, 201]
RUN: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "logits": True}
TREES: dict[str, Any] = {
    "chain": None, "tree": drafts.StaticTree((2, 2, 1)), "grown": drafts.DynamicTree(8, width=2, steps=4),
}  # fmt: skip


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[specdec.Model, Path]:
    """A target, and the folder of its assistant."""
    target, assistant = write_pair(tmp_path, request.param)
    return specdec.load(target, tokenizer=False), assistant


# ------------------------------------------------------------------------------------------- transformers


@dataclass
class Networks:
    """Target and assistant in transformers."""

    target: Any
    assistant: Any

    @classmethod
    def of(cls, target: specdec.Model, folder: Path) -> Networks:
        """Load both; the assistant's window is 2 less, with which it shows WINDOW - 1 tokens."""
        how = {"dtype": torch.float32, "attn_implementation": "eager"}
        loaded = []
        for path in (target.path, folder):
            name = json.loads((path / "config.json").read_text())["architectures"][0]
            network, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True, **how)
            assert not info["missing_keys"] and not info["unexpected_keys"]
            loaded.append(network.eval())
        loaded[1].config.get_text_config().sliding_window = WINDOW - 2
        return cls(*loaded)

    def read(self, text: list[int]) -> Any:
        """Run the target without its cache."""
        return self.target(
            torch.tensor([text]), use_cache=False, output_hidden_states=True, return_shared_kv_states=True
        )

    def logits(self, text: list[int], path: list[int]) -> np.ndarray:
        """Logits after draft tokens `path`, as `SinglePositionMultiTokenCandidateGenerator` computes them."""
        with torch.no_grad():
            read = self.read(text[:-1])
            state, embed = read.hidden_states[-1][:, -1:], self.target.get_input_embeddings()
            for token in [text[-1], *path]:
                out = self.assistant(
                    inputs_embeds=torch.cat([embed(torch.tensor([[token]])), state], dim=-1),
                    attention_mask=torch.ones(1, len(text), dtype=torch.long),
                    position_ids=torch.tensor([[len(text) - 1]]),
                    shared_kv_states=read.shared_kv_states, use_cache=False,
                )  # fmt: skip
                state = out.last_hidden_state
        logits = out.logits[0, -1].double().numpy()
        if self.assistant.config.use_ordered_embeddings:  # tokens of other clusters
            logits[logits == logits.min()] = -np.inf
        return logits

    def probs(self, text: list[int], path: list[int]) -> np.ndarray:
        weights = self.logits(text, path)
        weights = np.exp(weights - weights.max())
        return weights / weights.sum()


@pytest.mark.oracle
@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_draft_tokens_are_drawn_as_in_transformers(pair: tuple[specdec.Model, Path], tree: str) -> None:
    """Distributions of all nodes, in a batch of unequal texts, some of them longer than the window."""
    target, folder = pair
    networks = Networks.of(target, folder)
    prompts = [PROMPT * 2, PROMPT[:3], PROMPT[:2]]
    draft = drafts.Assistant(target, folder, tree=TREES[tree], gamma=3 if tree == "chain" else None)
    n_nodes, n_accepted = check_distributions(target, draft, prompts, networks.probs, atol=2e-5)
    assert n_nodes > 60 and n_accepted > 3


@pytest.mark.oracle
def test_greedy_draft_tokens_are_those_of_transformers(pair: tuple[specdec.Model, Path]) -> None:
    """Each round's, over texts that outgrow the window."""
    target, folder = pair
    networks = Networks.of(target, folder)
    result = specdec.generate(
        target, drafts.Assistant(target, folder), PROMPT, gamma=3, max_new_tokens=30, ignore_eos=True
    )
    text, n_checked = list(PROMPT), 0
    for one in result.trace.rounds:
        path: list[int] = []
        for token in one.drafted:
            assert token == int(networks.logits(text, path).argmax()), f"after {len(text)} tokens"
            path.append(token)
            n_checked += 1
        text += one.tokens
    assert n_checked > 40


@pytest.mark.oracle
def test_windows_are_two_tokens_shorter_than_those_of_transformers(tmp_path: Path) -> None:
    """transformers' mask shows WINDOW + 1 earlier tokens; a row of the target sees WINDOW - 1."""
    target, folder = write_pair(tmp_path, "dense")
    network = Networks.of(specdec.load(target, tokenizer=False), folder).assistant
    text = network.config.get_text_config()
    for window in (WINDOW, WINDOW - 2):
        text.sliding_window = window
        keys = torch.zeros(1, 2, 30, 16)
        shared = {"full_attention": (keys, keys), "sliding_attention": (keys, keys)}
        masks = network.create_attention_masks(
            torch.zeros(1, 1, 24), torch.ones(1, 31, dtype=torch.long), shared
        )
        seen = np.flatnonzero(masks["sliding_attention"][0, 0, 0].numpy() == 0)
        assert np.array_equal(seen, np.arange(30 - window - 1, 30))


# --------------------------------------------------------------------------------------- exact in all uses


@pytest.mark.parametrize("tree", TREES)
def test_output_is_that_of_plain_decoding(pair: tuple[specdec.Model, Path], tree: str) -> None:
    """Tokens and logits, alone and in a batch of unequal texts, with any gamma."""
    target, folder = pair
    prompts = [PROMPT, PROMPT * 3, PROMPT[:2], PROMPT[:1]]
    plain = specdec.generate(target, None, prompts, **RUN)
    draft = drafts.Assistant(target, folder, tree=TREES[tree])
    for gamma in (0, 1, 4, 8) if tree == "chain" else (8,):
        got = specdec.generate(target, draft, prompts, gamma=gamma, **RUN)
        for one, expected in zip(got, plain, strict=True):
            assert one.tokens == expected.tokens and np.array_equal(one.logits, expected.logits)
            assert (one.trace.n_drafted > 0) == (gamma > 0)


def test_draft_tokens_depend_on_the_text_alone(pair: tuple[specdec.Model, Path]) -> None:
    """Distributions to the bit: alone and in a batch, in chains and trees, with any number of threads."""
    target, folder = pair
    found: dict[tuple[int, ...], np.ndarray] = {}
    n_again = 0
    for tree in (None, drafts.StaticTree((2, 2))):
        draft = drafts.Assistant(target, folder, tree=tree, gamma=3 if tree is None else None)
        for prompts in ([PROMPT * 2], [PROMPT * 2, PROMPT[:3], PROMPT]):
            for n_threads in (1, 3):
                records = all_records(open_session(target, draft, prompts, n_threads=n_threads))
                texts = [list(prompt) for prompt in prompts]
                for record in records:
                    text, paths = texts[record["sequence"]], list[list[int]]([[]])
                    nodes = zip(record["drafted"], record["parents"], record["draft_probs"][1:], strict=True)
                    for token, parent, probs in nodes:
                        key = (len(text), *text, *paths[parent])
                        n_again += key in found
                        assert np.array_equal(found.setdefault(key, np.array(probs)), probs)
                        paths.append([*paths[parent], token])
                    text += record["tokens"]
    assert len(found) > 60 and n_again > 60


def test_an_engine_and_cached_prompts(pair: tuple[specdec.Model, Path]) -> None:
    """Requests that share slots, and turns that continue cached texts or cut them back."""
    target, folder = pair
    draft, cache, text = drafts.Assistant(target, folder), specdec.PromptCache(), PROMPT
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    for turn in range(3):
        plain = specdec.generate(target, None, text, **how, logits=True)
        found = specdec.generate(target, draft, text, **how, logits=True, prompt_cache=cache)
        assert found.tokens == plain.tokens and np.array_equal(found.logits, plain.logits)
        assert found.trace.n_drafted and bool(found.n_cached_tokens) == (turn > 0)
        text = [*text, *plain.tokens[:-3], 3]
    prompts = [PROMPT, PROMPT[:1], text, PROMPT * 2]
    with specdec.Engine(target, draft, n_slots=2, n_text=100, prompt_cache=cache) as engine:
        requests = [engine.submit(prompt, **how) for prompt in prompts]
        for request, prompt in zip(requests, prompts, strict=True):
            assert request.result().tokens == specdec.generate(target, None, prompt, **how).tokens


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_number_formats(dtype: Any, tmp_path: Path) -> None:
    """Of target and assistant; the cache of an int8 target is not in f32."""
    path, folder = write_pair(tmp_path, "centroids")
    target = specdec.load(path, dtype, tokenizer=False)
    draft = drafts.Assistant(target, folder, dtype=dtype)
    plain, found = (specdec.generate(target, one, PROMPT, **RUN) for one in (None, draft))
    assert draft.dtype == dtype and found.tokens == plain.tokens and found.trace.n_drafted > 20
    assert np.array_equal(found.logits, plain.logits)


def test_next_to_other_drafts(pair: tuple[specdec.Model, Path]) -> None:
    """In an ensemble with a draft in the target's own cache; not as the draft of a draft."""
    target, folder = pair
    own = drafts.Assistant(target, folder)
    plain = specdec.generate(target, None, PROMPT, **RUN)
    draft = drafts.Ensemble(drafts.EarlyExit(2), own, drafts.PromptLookup(), adaptive=False)
    found = specdec.generate(target, draft, PROMPT, **RUN)
    assert found.tokens == plain.tokens and np.array_equal(found.logits, plain.logits)
    with pytest.raises(InputError, match="does not work in its target's cache"):
        drafts.ModelDraft(target, draft=own)


def test_head_tokens(tmp_path: Path) -> None:
    """A head without centroids may be reduced to some tokens."""
    path, folder = write_pair(tmp_path, "dense")
    target = specdec.load(path, tokenizer=False)
    draft = drafts.Assistant(target, folder, head_tokens=range(0, 256, 3))
    assert draft.head_tokens is not None
    plain, found = (specdec.generate(target, one, PROMPT, **RUN) for one in (None, draft))
    drafted = {token for one in found.trace.rounds for token in one.drafted}
    assert found.tokens == plain.tokens and drafted <= {*draft.head_tokens} and len(drafted) > 5
    copied = pickle.loads(pickle.dumps(draft))
    assert np.array_equal(copied.head_tokens, draft.head_tokens)


def test_by_path_by_name_and_in_pickles(pair: tuple[specdec.Model, Path]) -> None:
    target, folder = pair
    shape = drafts.StaticTree((2, 1))
    made = [
        drafts.load(folder, target, tree=shape), drafts.named(f"assistant:{folder}", target),
        drafts.named(str(folder), target),
    ]  # fmt: skip
    assert [type(one) for one in made] == [drafts.Assistant] * 3
    copied = pickle.loads(pickle.dumps(made[0]))
    assert (type(copied), copied.tree, copied.target, copied.path) == (
        drafts.Assistant, shape, target, folder
    )  # fmt: skip
    assert repr(copied).startswith("<specdec.drafts.Assistant ")
    with pytest.raises(InputError, match=re.escape("Assistant(target, path)")):
        drafts.Ensemble(str(folder), drafts.PromptLookup())


# ------------------------------------------------------------------------------------------- what is refused

WRONG: dict[str, tuple[type[Exception], str, Callable[[dict[str, Any]], Any]]] = {
    "width": (InputError, "'backbone_hidden_size' is 32; expected 48",
              lambda c: c.update(backbone_hidden_size=32)),
    "vocabulary": (VocabularyMismatchError, "'text_config.vocab_size' is 224; expected 256",
                   lambda c: c["text_config"].update(vocab_size=224)),
    "heads": (InputError, "'text_config.head_dim, layer 0' is 12; expected 16, as in layer 2 of",
              lambda c: c["text_config"].update(head_dim=12)),
    "full attention": (InputError, "'text_config.head_dim, layer 2' is 16; expected 24, as in layer 3 of",
                       lambda c: c["text_config"].update(global_head_dim=16)),
    "KV heads": (InputError, "'text_config.num_key_value_heads, layer 0' is 1; expected 2",
                 lambda c: c["text_config"].update(num_key_value_heads=1)),
    "window": (InputError, "'text_config.sliding_window, layer 0' is 8; expected 9",
               lambda c: c["text_config"].update(sliding_window=8)),
    "rotation": (InputError, "'text_config.rope_parameters, layer 0'",
                 lambda c: c["text_config"].update(rope_parameters=None)),
    "own keys": (UnsupportedModelError, "num_kv_shared_layers' is 1; expected 3, all layers",
                 lambda c: c["text_config"].update(num_kv_shared_layers=1)),
    "per-layer embeddings": (UnsupportedModelError, "hidden_size_per_layer_input' is 8; expected 0",
                             lambda c: c["text_config"].update(hidden_size_per_layer_input=8)),
    "experts": (UnsupportedModelError, "enable_moe_block' is true",
                lambda c: c["text_config"].update(enable_moe_block=True)),
    "a head of its own": (UnsupportedModelError, "tie_word_embeddings' is false",
                          lambda c: c.update(tie_word_embeddings=False)),
    "clusters": (CheckpointError, "n_clusters is 7, expected clusters of a multiple of 32",
               lambda c: c.update(use_ordered_embeddings=True, num_centroids=7)),
    "too many clusters": (CheckpointError, "n_chosen_clusters is 32, expected 1 to 8",
                        lambda c: c.update(use_ordered_embeddings=True, num_centroids=8)),
    "no centroids": (CheckpointError, "masked_embedding.token_ordering' is missing",
                     lambda c: c.update(use_ordered_embeddings=True, num_centroids=8,
                                        centroid_intermediate_top_k=2)),
    "another class": (UnsupportedModelError, "'architectures' is",
                      lambda c: c.update(architectures=["LlamaForCausalLM"])),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_another_target_or_configuration_is_refused(case: str, tmp_path: Path) -> None:
    """Messages name file, field and expectation."""
    error, message, change = WRONG[case]
    path, folder = write_pair(tmp_path, "dense")
    target = specdec.load(path, tokenizer=False)
    config = json.loads(json.dumps(PAIRS["dense"][1]))
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=re.escape(message)) as caught:
        drafts.Assistant(target, folder)
    assert "config.json" in str(caught.value) or str(folder) in str(caught.value)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, folder = write_pair(tmp_path, "centroids")
    target, config = specdec.load(path, tokenizer=False), PAIRS["centroids"][1]
    with pytest.raises(UnsupportedModelError, match="is a draft, for specdec.drafts.Assistant"):
        specdec.load(folder)
    with pytest.raises(InputError, match="head_tokens is 5; expected None"):
        drafts.Assistant(target, folder, head_tokens=5)
    order = "masked_embedding.token_ordering"
    dtypes = dict.fromkeys(assistant_tensors(config), "F32") | {order: "I64"}
    for wrong, message in {
        "twice": "is no order of the tokens", "less": "'model.layers.1.layer_scalar' is missing",
        "more": "does not use: 'model.layers.0.self_attn.k_proj.weight'",
    }.items():  # fmt: skip
        tensors = assistant_tensors(config)
        if wrong == "twice":
            tensors[order][:2] = 7
        elif wrong == "more":
            tensors["model.layers.0.self_attn.k_proj.weight"] = np.zeros((32, 24), np.float32)
        else:
            del tensors["model.layers.1.layer_scalar"]
        write_hf(folder, config, tensors, dtype={"model.layers.0.self_attn.k_proj.weight": "F32"} | dtypes)
        with pytest.raises(CheckpointError, match=re.escape(message)):
            drafts.Assistant(target, folder)
    other = specdec.load(write_pair(tmp_path / "other", "dense")[0], tokenizer=False)
    draft = drafts.Assistant(target, write_assistant(tmp_path / "sound", config))
    with pytest.raises(InputError, match="was trained for the target"):
        specdec.generate(other, draft, PROMPT)
