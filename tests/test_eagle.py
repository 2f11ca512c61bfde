"""EAGLE-1 and EAGLE-3 from files, against the papers' definitions.

`test_every_drafter.py` tests that output stays the target's, with all other drafts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses_field
from specdec import drafts
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    VocabularyMismatchError,
)  # fmt: skip
from worlds.canonical import LLAMA, build, decoder_of, random_tensors
from worlds.eagles import EagleFolder, PaperDraft, eagle1, eagle3
from worlds.folders import llama_config, write_hf
from worlds.learned import check_distributions, random_heads

PROMPT = [1, 5, 2, 7, 3, 5, 2]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    """A target with four layers and few tokens, so that random draft tokens are sometimes accepted."""
    config = llama_config(vocab_size=17, num_hidden_layers=4, max_position_embeddings=240)
    return specdec.load(write_hf(tmp_path_factory.mktemp("target"), config, seed=3), tokenizer=False)


NORMS = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
QWEN3: dict[str, Any] = {"model_type": "qwen3", "num_hidden_layers": 2, "rope_theta": 1e6}
FOLDERS: dict[str, Callable[[specdec.Model], EagleFolder]] = {
    "EAGLE-1": eagle1,
    "vLLM": lambda target: eagle3(target, own_embedding=True),
    "SpecForge": lambda target: eagle3(target, "specforge", n_draft=9),
    "speculators": lambda target: eagle3(target, "speculators", n_draft=11, flags=NORMS),
    "EAGLE 3.1": lambda target: eagle3(target, flags={"fc_norm": True}, **QWEN3),
    "a narrower draft": lambda target: eagle3(target, captures=(3, 0), hidden_size=24),
}


def paper_of(folder: EagleFolder) -> PaperDraft:
    core = folder.target.core
    return PaperDraft(folder, core.token_table(), core.matrix("head"))


def features_of(folder: EagleFolder, text: list[int]) -> np.ndarray:
    states = folder.target.hidden_states(text, folder.captures)
    return np.concatenate([states[layer] for layer in folder.captures], axis=1)


def assert_chains_of_the_paper(folder: EagleFolder, draft: Any, **options: Any) -> specdec.Result:
    """Check each round's draft tokens, given the tokens accepted before."""
    settings: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True, "gamma": 3, **options}
    result = specdec.generate(folder.target, draft, PROMPT, **settings)
    paper, text = paper_of(folder), list(PROMPT)
    features = features_of(folder, PROMPT + result.tokens)
    for one in result.trace.rounds:
        expected = paper.chain(text, features[: len(text) - 1], len(one.drafted))
        assert list(one.drafted) == expected, f"after {len(text)} tokens"
        text += one.tokens
    return result


QUICK = ("EAGLE-1", "speculators")


@pytest.mark.parametrize(
    "layout", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FOLDERS]
)
def test_trees_are_drawn_as_in_the_paper(target: specdec.Model, layout: str, tmp_path: Path) -> None:
    """Distributions that sampled nodes were drawn from, over rounds that accept some nodes, in a batch."""
    folder = FOLDERS[layout](target)
    draft = drafts.Eagle(folder.write(tmp_path), target, tree=drafts.StaticTree((2, 2, 1)))

    prompts = [PROMPT, PROMPT[2:]]
    papers = {prompt[0]: paper_of(folder) for prompt in prompts}  # each keeps the rows of its text

    def expected(text: list[int], path: list[int]) -> np.ndarray:
        paper = papers[text[0]]
        return paper.probabilities(paper.after(text, features_of(folder, text), path))

    assert check_distributions(target, draft, prompts, expected, atol=1e-4, max_new_tokens=30)[1] > 5


def test_rounds_that_are_sat_out_are_read_later(target: specdec.Model, tmp_path: Path) -> None:
    """Up to more than a slice of them, with the target's hidden states."""
    folder = eagle3(target, n_draft=9)
    draft = drafts.Eagle(folder.write(tmp_path), target)

    def gamma(rounds: Any) -> int:
        return 3 if len(rounds) in (0, 1, 10, 11, 90, 91) else 0

    result = assert_chains_of_the_paper(folder, draft, gamma=gamma, max_new_tokens=110)
    assert result.trace.n_drafted == 18


def test_long_prompts_are_read_in_slices(target: specdec.Model, tmp_path: Path) -> None:
    folder = eagle1(target)
    draft = drafts.Eagle(folder.write(tmp_path), target)
    prompt = np.random.default_rng(0).integers(0, 17, 180).tolist()
    result = specdec.generate(target, draft, prompt, max_new_tokens=3, gamma=2, ignore_eos=True)
    expected = paper_of(folder).chain(prompt, features_of(folder, prompt), 2)
    assert list(result.trace.rounds[0].drafted) == expected


def test_eagle_2_is_a_tree_that_grows(target: specdec.Model, tmp_path: Path) -> None:
    """Of width 1 it is the chain; wider, each node's children are the likeliest after its path."""
    folder = eagle3(target)
    path = folder.write(tmp_path)
    chain = drafts.Eagle(path, target, tree=drafts.DynamicTree(3, width=1, steps=3))
    assert_chains_of_the_paper(folder, chain)
    draft = drafts.Eagle(path, target, tree=drafts.DynamicTree(8, width=2, steps=4, sharpness=1.0))
    result = specdec.generate(target, draft, PROMPT, max_new_tokens=20, ignore_eos=True)
    paper, text = paper_of(folder), list(PROMPT)
    features = features_of(folder, PROMPT + result.tokens)
    depths = set()
    for one in result.trace.rounds:
        paths: list[list[int]] = [[]]
        for token, parent in zip(one.drafted, one.parents, strict=True):
            logits = paper.after(text, features[: len(text) - 1], paths[parent])
            assert token in np.argsort(-logits)[:2]
            paths.append([*paths[parent], token])
        depths.add(max(map(len, paths)))
        text += one.tokens
    assert max(depths) > 2


@pytest.mark.parametrize("options", [{"dtype": "bf16"}, {"dtype": "int8"}, {"prefill": "blas"}])
@pytest.mark.parametrize("draft_dtype", [None, "int8"])
def test_formats_of_target_and_draft_are_apart(
    target: specdec.Model, options: Any, draft_dtype: Any, tmp_path: Path
) -> None:
    """A head of the target keeps its format, whatever the draft's own matrices have; output stays plain."""
    other = specdec.load(target.path, tokenizer=False, **options)
    draft = drafts.Eagle(eagle1(target).write(tmp_path), other, dtype=draft_dtype)
    assert draft.dtype == (draft_dtype or "f32")
    how: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
    got, plain = (specdec.generate(other, each, PROMPT * 6, **how) for each in (draft, None))
    assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)


def test_what_is_the_targets_is_in_memory_once(target: specdec.Model, tmp_path: Path) -> None:
    shared, own = eagle1(target), eagle1(target)
    del shared.tensors["embed_tokens.weight"]
    sizes = [
        drafts.Eagle(folder.write(tmp_path / str(i)), target).core.model.n_parameters
        for i, folder in enumerate((shared, own))
    ]
    assert sizes[1] - sizes[0] == 17 * 32
    assert sizes[0] == sum(array.size for array in shared.tensors.values())


def test_a_prompt_cache_changes_no_draft_token(target: specdec.Model, tmp_path: Path) -> None:
    draft, cache = drafts.Eagle(eagle3(target).write(tmp_path), target), specdec.PromptCache()
    options: dict[str, Any] = {
        "max_new_tokens": 20, "ignore_eos": True, "temperature": 1.0, "seed": 3, "verify": "coupled",
    }  # fmt: skip
    plain = specdec.generate(target, None, PROMPT * 4, **options)
    runs = [
        specdec.generate(target, draft, PROMPT * 4, prompt_cache=c, **options) for c in (None, cache, cache)
    ]
    assert [run.n_cached_tokens > 0 for run in runs] == [False, False, True]
    for got in runs:
        assert got.tokens == plain.tokens and got.trace.n_drafted > 0
        assert [one.drafted for one in got.trace.rounds] == [one.drafted for one in runs[0].trace.rounds]


def test_a_slot_is_taken_by_a_prompt_of_another_first_token(target: specdec.Model, tmp_path: Path) -> None:
    """The draft's rows hold the later tokens only, and depend on the first."""
    folder = eagle3(target)
    draft = drafts.Eagle(folder.write(tmp_path), target)
    prompts = [[first, *PROMPT] for first in (1, 2, 3)]
    options: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "gamma": 3}
    for got, prompt in zip(
        specdec.generate(target, draft, prompts, batch_size=1, **options), prompts, strict=True
    ):
        expected = paper_of(folder).chain(prompt, features_of(folder, prompt), 3)
        assert list(got.trace.rounds[0].drafted) == expected


def test_a_prompt_of_one_token_has_no_draft_token_at_first(target: specdec.Model, tmp_path: Path) -> None:
    """No earlier token has hidden states to read."""
    draft = drafts.Eagle(eagle3(target).write(tmp_path), target)
    result = specdec.generate(target, draft, [4], max_new_tokens=9, ignore_eos=True, gamma=2)
    assert [len(one.drafted) for one in result.trace.rounds][:2] == [0, 2]


def test_a_model_that_reads_features_is_no_model_by_itself(target: specdec.Model, tmp_path: Path) -> None:
    eagle = drafts.Eagle(eagle3(target).write(tmp_path), target).core
    with pytest.raises(RuntimeError, match="reads features next to tokens"):
        decoder_of(eagle.model, capacity=5).prefill([1, 2])
    with pytest.raises(ValueError, match="reads no features"):
        type(eagle)(target.core, layers=[1])


def test_load_opens_what_is_there(target: specdec.Model, tmp_path: Path) -> None:
    for i, folder in enumerate((eagle1(target), *(eagle3(target, of) for of in ("vllm", "specforge")))):
        tree = drafts.DynamicTree(6)
        draft = drafts.load(folder.write(tmp_path / str(i)), target, tree=tree, dtype="int8")
        assert isinstance(draft, drafts.Eagle) and draft.tree is tree and draft.dtype == "int8"
    assert isinstance(drafts.load(target.path, target), drafts.ModelDraft)
    draft = tmp_path / "1"
    got = specdec.generate(target, draft, PROMPT, max_new_tokens=9, ignore_eos=True)
    assert got.trace.n_drafted > 8
    with pytest.raises(InputError, match=r"draft 0 of Ensemble .*; expected specdec.drafts.Eagle\("):
        drafts.Ensemble(draft)


def test_another_target_is_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    path = eagle3(target).write(tmp_path / "draft")
    folders = {
        name: specdec.load(write_hf(tmp_path / name, llama_config(**changes)), tokenizer=False)
        for name, changes in {
            "wide": {"vocab_size": 17, "hidden_size": 48, "num_hidden_layers": 4},
            "tokens": {"num_hidden_layers": 4},
            "shallow": {"vocab_size": 17},
        }.items()
    }
    with pytest.raises(InputError, match=r"the given target .*wide has d_model 48"):
        drafts.Eagle(path, folders["wide"])
    with pytest.raises(VocabularyMismatchError, match=r"expected the 61 of .*tokens"):
        drafts.Eagle(path, folders["tokens"])
    with refuses_field(path / "config.json", "eagle_aux_hidden_state_layer_ids[2]"):
        drafts.Eagle(path, folders["shallow"])
    draft = drafts.Eagle(path, target)
    with pytest.raises(InputError, match=r"with n_layer 2; expected 4"):
        specdec.generate(folders["shallow"], draft, PROMPT)


def test_usual_layers_are_taken_where_none_are_named(target: specdec.Model, tmp_path: Path) -> None:
    config = llama_config(vocab_size=17, num_hidden_layers=8)
    deep = specdec.load(write_hf(tmp_path / "deep", config), tokenizer=False)
    for number, (model, captures) in enumerate(((deep, (2, 4, 5)), (target, None))):
        path = eagle3(model, captures=(1, 2, 3)).write(tmp_path / str(number))
        stored = json.loads((path / "config.json").read_text())
        del stored["eagle_aux_hidden_state_layer_ids"]
        (path / "config.json").write_text(json.dumps(stored))
        if captures is None:
            with pytest.raises(InputError, match="4 layers are too few for the default"):
                drafts.Eagle(path, model)
            assert drafts.Eagle(path, model, captures=[4, 0, 4]).captures == (4, 0, 4)
        else:
            assert drafts.Eagle(path, model).captures == captures


@pytest.mark.parametrize("layout", ["EAGLE-1", "SpecForge"])
def test_what_training_wrote_of_the_target_counts(target: specdec.Model, layout: str, tmp_path: Path) -> None:
    """`specdec_draft` in addition to the published layout: the target, and the hidden states read."""
    folder = FOLDERS[layout](target)
    path = folder.write(tmp_path / "draft")
    config = json.loads((path / "config.json").read_text())
    config.pop("eagle_config", None)
    captures = list(folder.captures)
    identity = vars(random_heads(target).target)
    config["specdec_draft"] = {"target": identity, "captures": captures}
    (path / "config.json").write_text(json.dumps(config))
    assert_chains_of_the_paper(folder, drafts.load(path, target))
    other = specdec.load(
        write_hf(tmp_path / "other", llama_config(vocab_size=17, num_hidden_layers=4, rms_norm_eps=1e-4)),
        tokenizer=False,
    )
    with pytest.raises(InputError, match=f"for the target '.*{target.path.name}'; the given one is .*other"):
        drafts.load(path, other)
    for wrong, field in (({"captures": captures}, "specdec_draft.target"), (3, "specdec_draft")):
        (path / "config.json").write_text(json.dumps(config | {"specdec_draft": wrong}))
        with refuses_field(path / "config.json", field):
            drafts.Eagle(path, target)


LAYERS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("fields", "tensors", "named"),
    [
        ({}, {"fc.weight": ...}, "tensor 'fc.weight' is missing"),
        ({}, {"norm.weight": ...}, "tensor 'norm.weight' is missing"),
        ({}, {"d2t": ...}, r"tensor 'd2t' is missing; expected it with shape \[9\]"),
        ({}, {"d2t": np.zeros(10)}, r"tensor 'd2t' has shape \[10\]; expected \[9\]"),
        ({}, {"d2t": np.full(9, 9)}, r"element \[8\] is 9; expected -8 to 8"),
        ({}, {"d2t": -np.arange(9)}, "gives the target's token 0 9 times"),
        ({}, {"fc.weight": np.zeros((32, 64), "f4")}, r"shape \[32, 64\]; expected \[32, 96\]"),
        ({}, {"mask_hidden": np.zeros((1, 96), "f4")}, "does not use: 'mask_hidden'"),
        ({}, {"norm.weight": np.full(32, np.nan, "f4")}, r"draft: tensor output_norm.weight: element \[0\]"),
        ({"parallel_drafting": True}, {}, "'parallel_drafting'"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "use_aux_hidden_state'"),
        ({"eagle_config": {"use_last_layernorm": False}}, {}, "use_last_layernorm'"),
        ({"fc_norm": True, "norm_before_fc": True}, {}, "'fc_norm'"),
        ({LAYERS: "low"}, {}, "hidden_state_layer_ids'"),
        ({"draft_vocab_size": 18}, {}, "'draft_vocab_size'"),
        ({"model_type": "mamba"}, {}, "'model_type'"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, {}, "'architectures'"),
        ({"speculators_model_type": "dflash"}, {}, "'speculators_model_type'"),
        ({"speculators_model_type": "eagle3"}, {}, "'transformer_layer_config' is missing"),
    ],
)
def test_damaged_folders_are_refused_by_name(
    target: specdec.Model, fields: Any, tensors: Any, named: str, tmp_path: Path
) -> None:
    folder = eagle3(target, n_draft=9)
    path = folder.write(tmp_path / "draft")
    config = json.loads((path / "config.json").read_text()) | fields
    held = folder.tensors | {"d2t": np.array(folder.tokens) - np.arange(9)} | tensors
    kept = {name: array for name, array in held.items() if array is not ...}
    write_hf(path, config, kept, dtype={"d2t": "I64"})
    with pytest.raises(CheckpointError, match=named):
        drafts.Eagle(path, target)


def test_weights_in_pickles_are_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    path = eagle1(target).write(tmp_path / "draft")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointNotFoundError, match="but pytorch_model.bin; expected"):
        drafts.Eagle(path, target)


def test_a_table_is_shared_with_a_target_of_its_shape_alone() -> None:
    config = LLAMA | {"features": "joined", "feature_width": LLAMA["d_model"], "shared_embedding": True}
    other = LLAMA | {"n_vocab": LLAMA["n_vocab"] + 1}
    wrong = build(other, random_tensors(other))
    with pytest.raises(ValueError, match="expected the target that has it"):
        build(config, random_tensors(config))
    with pytest.raises(ValueError, match="a table or head"):
        type(wrong)(config, [(name, x, "f32") for name, x in random_tensors(config).items()], target=wrong)
