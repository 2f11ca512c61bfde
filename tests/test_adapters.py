"""LoRA adapters: merged, unmerged, and several in one batch.

Bits are compared with `specdec.reference`, batches with each adapter alone; test_peft.py has PEFT.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import fail_each_allocation, needs_hooks, nothing_leaks
from command_line import run
from drafters import DRAFTS, World
from grids import in_few_items
from refusals import refuses, refuses_field
from specdec import reference
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from tensor_files import canonical
from toy_pair import blurred
from trained import MODELS, small_pair
from worlds.adapters import (
    LLAMA_MODULES,
    adapter_config,
    llama_adapter,
    llama_shapes,
    low_rank_tensors,
    write_adapter,
)
from worlds.families import CONFIGS, random_weights
from worlds.folders import gpt2_config, llama_config, llama_tensors, mistral_config, tensors_for, write_hf

SETTINGS = llama_config(max_position_embeddings=200, hidden_size=64, intermediate_size=104)
IDS = [int(token) for token in np.random.default_rng(4).integers(3, 61, 50)]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.9, "verify": "coupled", "seed": 5},
}


def with_head(folder: Path, seed: int, **settings: Any) -> Path:
    """Settings of an adapter that also changes the head."""
    shapes = llama_shapes(SETTINGS) | {"lm_head": (SETTINGS["vocab_size"], SETTINGS["hidden_size"])}
    ranks = dict.fromkeys(shapes, settings["r"])
    return write_adapter(folder, adapter_config(**settings), low_rank_tensors(shapes, ranks, seed))


class Adapted:
    """A tiny Llama, a similar draft, and three adapters of different ranks, modules and scales."""

    def __init__(self, folder: Path) -> None:
        tensors = {name: 2 * array for name, array in llama_tensors(SETTINGS, seed=1).items()}
        self.path = write_hf(folder / "base", SETTINGS, tensors)
        self.target = specdec.load(self.path)
        self.draft = specdec.load(write_hf(folder / "draft", SETTINGS, blurred(tensors, 0.1)))
        self.folders = [
            llama_adapter(folder / "all", SETTINGS, 2),
            with_head(folder / "large", 3, r=40, use_rslora=True),
            llama_adapter(folder / "some", SETTINGS, 4, ("self_attn.q_proj", "mlp.down_proj"), r=3),
        ]
        self.adapted = [self.target.with_adapter(path) for path in self.folders]

    @property
    def world(self) -> World:
        return World(self.adapted[0], self.draft, IDS * 5)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"))


CANONICAL = ("attn_q", "attn_k", "attn_v", "attn_out", "mlp_gate", "mlp_up", "mlp_down")


def canonical_name(module: str) -> str:
    if module == "lm_head":
        return "head"
    _, _, layer, name = module.split(".", 3)
    return f"layers.{layer}.{CANONICAL[LLAMA_MODULES.index(name)]}.weight"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_logits_have_the_bits_of_the_specification(tmp_path: Path, dtype: Any) -> None:
    """All matrices and the head, with ranks below, at and above a block of inputs."""
    shapes = llama_shapes(SETTINGS) | {"lm_head": (SETTINGS["vocab_size"], SETTINGS["hidden_size"])}
    ranks = {"self_attn.q_proj": 32, "mlp.up_proj": 33, "mlp.down_proj": 1, "lm_head": 7}
    of_module = dict.fromkeys(shapes, 4)
    of_module |= {module: rank for module in shapes for end, rank in ranks.items() if module.endswith(end)}
    tensors = low_rank_tensors(shapes, of_module, seed=7)
    folder = write_adapter(tmp_path / "adapter", adapter_config(rank_pattern=ranks, lora_alpha=3), tensors)
    base = write_hf(tmp_path / "base", SETTINGS, llama_tensors(SETTINGS, seed=1))
    model = specdec.load(base, dtype, cache_dtype="f32", prefill="rows")
    given = {}
    for module, rank in of_module.items():
        down, up = (tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
        given[canonical_name(module)] = down, up * np.float32(3 / rank)
    expected = reference.exact_logits(model.core.config, canonical(base), IDS, formats=dtype, low_rank=given)
    found = model.with_adapter(folder).logits(IDS)
    assert np.array_equal(found, expected)
    assert np.abs(found - model.logits(IDS)).max() > 0.1


def summed(folder: Path, config: dict[str, Any], adapter: Any, scales: Any = None, seed: int = 2) -> Path:
    """Write a base folder with an adapter's products added to its matrices in f32."""
    tensors = tensors_for(config, seed)
    for name in adapter:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        if name.endswith("lora_A.weight"):
            up = adapter[name.replace("lora_A", "lora_B")] * np.float32((scales or {}).get(module, 2.0))
            more = up @ adapter[name]
            tensors[f"{module}.weight"] += more.T if config["model_type"] == "gpt2" else more
    return write_hf(folder, config, tensors)


def test_modules_whose_rows_or_inputs_move(tmp_path: Path) -> None:
    """Heads that take turns with their gates, and heads of the delta rule in another order."""
    name = "Qwen3_5ForCausalLM"
    config = CONFIGS[name] | {"architectures": [name]}
    base = random_weights(name, config)
    modules = ("0.linear_attn.out_proj", "0.linear_attn.in_proj_qkv", "1.self_attn.q_proj")
    shapes = {f"model.layers.{module}": base[f"model.layers.{module}.weight"].shape for module in modules}
    tensors = low_rank_tensors(shapes, {}, seed=3)
    adapter = write_adapter(tmp_path / "adapter", adapter_config(), tensors)
    more = {
        f"{module}.weight": np.float32(2) * up @ down
        for module in shapes
        for down, up in [[tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB"]]
    }
    folder = write_hf(tmp_path / "base", config, base)
    both = write_hf(tmp_path / "summed", config, {key: base[key] + more.get(key, 0) for key in base})
    model, ids = specdec.load(folder), list(range(3, 17))
    expected = specdec.load(both).logits(ids)
    for adapted in (specdec.load(folder, adapter=adapter), model.with_adapter(adapter)):
        np.testing.assert_allclose(adapted.logits(ids), expected, atol=1e-5)
    assert np.abs(expected - model.logits(ids)).max() > 0.1


@pytest.mark.parametrize("by_root", [False, True])
def test_scales_of_modules(tmp_path: Path, by_root: bool) -> None:
    """The first pattern that matches a module's name or its end wins, else the field itself."""
    tensors = low_rank_tensors(llama_shapes(SETTINGS, ("self_attn.q_proj", "mlp.up_proj")), {}, seed=1)
    patterns = {"proj": 1, "up_proj": 3, r".*\.0\..*": 5, "mlp.up_proj": 7}
    config = adapter_config(use_rslora=by_root, alpha_pattern=patterns)
    adapter = write_adapter(tmp_path / "adapter", config, tensors)
    alphas = {"0.self_attn.q_proj": 5, "0.mlp.up_proj": 3, "1.self_attn.q_proj": 8, "1.mlp.up_proj": 3}
    scales = {f"model.layers.{name}": alpha / (2 if by_root else 4) for name, alpha in alphas.items()}
    wanted = specdec.load(summed(tmp_path / "summed", SETTINGS, tensors, scales)).logits(IDS)
    found = specdec.load(write_hf(tmp_path / "base", SETTINGS, seed=2), adapter=adapter).logits(IDS)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    "config", [llama_config(), gpt2_config(), mistral_config()], ids=lambda c: c["model_type"]
)
def test_merged_and_separate_adapters_equal_the_sum(tmp_path: Path, config: dict[str, Any]) -> None:
    """Merging is bit-exact in every number format; GPT-2 has a transposed fused QKV matrix."""
    own = {"attn.c_attn": (96, 32), "attn.c_proj": (32, 32), "mlp.c_fc": (128, 32)}
    of_gpt2 = {f"transformer.h.{i}.{name}": shape for i in range(2) for name, shape in own.items()}
    shapes = of_gpt2 if config["model_type"] == "gpt2" else llama_shapes(config)
    tensors = low_rank_tensors(shapes, {}, seed=3)
    folder = write_adapter(tmp_path / "adapter", adapter_config(fan_in_fan_out=True), tensors)
    base, sums = write_hf(tmp_path / "base", config, seed=2), summed(tmp_path / "summed", config, tensors)
    for dtype in ("f32", "bf16", "int4"):
        wanted = specdec.load(sums, dtype).logits(IDS[:40])
        merged = specdec.load(base, dtype, adapter=folder)
        assert np.array_equal(merged.logits(IDS[:40]), wanted)
    model, wanted = specdec.load(base), specdec.load(sums).logits(IDS[:40])
    unmerged = model.with_adapter(folder)
    assert np.abs(unmerged.logits(IDS[:40]) - wanted).max() < 2e-5
    assert np.abs(model.logits(IDS[:40]) - wanted).max() > 0.05
    assert (unmerged.adapter, unmerged.base, merged.adapter, model.base) == (folder, model, None, None)


@pytest.mark.parametrize("settings", [{"dtype": "bf16", "prefill": "tiles"}, {"prefill": "blas"}], ids=str)
def test_prompts_in_other_orders_of_sums(adapted: Adapted, settings: dict[str, Any]) -> None:
    """Other prefill methods have other bits; speculation on them is still exact."""
    target = specdec.load(adapted.path, **settings)
    model = target.with_adapter(adapted.folders[1])
    rows = specdec.load(adapted.path, settings.get("dtype"), prefill="rows").with_adapter(adapted.folders[1])
    near = np.abs(model.logits(IDS) - rows.logits(IDS)).max()
    if settings["prefill"] == "tiles":
        assert 0 < near < 0.3
    else:  # small products of OpenBLAS have the same bits on some processors
        assert near < 2e-5
    wanted = specdec.generate(model, None, [IDS, IDS[:7]], max_new_tokens=12, logits=True, ignore_eos=True)
    options: dict[str, Any] = {"max_new_tokens": 12, "logits": True, "ignore_eos": True}
    prompts, models = [IDS, IDS[:7], IDS], [model, model, None]
    found = specdec.generate(target, adapted.draft, prompts, adapter=models, **options)
    for one, other in zip(found, [*wanted, specdec.generate(target, None, IDS, **options)], strict=True):
        assert one.tokens == other.tokens and np.array_equal(one.logits, other.logits)


def test_scores_threads_and_beams(adapted: Adapted) -> None:
    model = adapted.adapted[1]
    logits = model.logits(IDS[:-1]).astype(np.float64)
    wanted = logits[np.arange(len(logits)), IDS[1:]] - np.log(np.exp(logits).sum(axis=1))
    assert np.allclose(model.score(IDS, n_threads=3), wanted, atol=1e-5)
    many = model.score([(IDS[:20], IDS[20:]), (IDS[:20], IDS[:9])])
    assert np.array_equal(many[0].log_probs, model.score(IDS)[19:])
    assert np.array_equal(model.logits(IDS, n_threads=1), model.logits(IDS, n_threads=4))
    plain, drafted, of_base = (
        [beam.tokens for beam in specdec.beam_search(of, draft, IDS, width=3, max_new_tokens=8).beams]
        for of, draft in ((model, None), (model, adapted.draft), (adapted.target, None))
    )
    assert plain == drafted and plain[0] != of_base[0]


# ----------------------------------------------------------------------------------------------- texts


def options_of(how: str, seed: Any) -> dict[str, Any]:
    own = HOW[how] | ({"seed": seed} if how == "coupled" else {})
    return {"max_new_tokens": 24, "ignore_eos": True, "logits": True, **own}


@pytest.fixture(scope="module")
def wanted(adapted: Adapted) -> dict[str, list[specdec.Result]]:
    """Results of each adapter alone, and of the base, by decoding settings."""
    texts = list(zip([*adapted.adapted, adapted.target], PROMPTS, strict=True))
    return {
        how: [
            specdec.generate(model, None, prompt, **options_of(how, [(5, i)]))
            for i, (model, prompt) in enumerate(texts)
        ]
        for how in HOW
    }


PROMPTS = [IDS[:30] + IDS[10:30], IDS[:30], IDS[:1], IDS[:30] + IDS[10:30]]


@in_few_items(by="how")
@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("how", HOW)
def test_a_batch_of_adapters_is_each_alone(
    adapted: Adapted, wanted: dict[str, list[specdec.Result]], name: str, how: str
) -> None:
    """Every draft, four sequences in three slots: equal tokens and logits, to the bit."""
    draft = DRAFTS[name](adapted.world)
    found = specdec.generate(
        adapted.target, draft, PROMPTS, adapter=[*adapted.adapted, None], batch_size=3, n_threads=2,
        **options_of(how, [(5, i) for i in range(4)]),
    )  # fmt: skip
    for i, (one, other) in enumerate(zip(found, wanted[how], strict=True)):
        assert one.tokens == other.tokens, i
        assert np.array_equal(one.logits, other.logits), i
    alone = specdec.generate(adapted.adapted[1], draft, PROMPTS[1], **options_of(how, [(5, 1)]))
    assert alone.tokens == wanted[how][1].tokens
    assert np.array_equal(alone.logits, wanted[how][1].logits)
    assert wanted[how][0].tokens != wanted[how][3].tokens  # one prompt


def test_drafts_may_have_adapters(adapted: Adapted, wanted: dict[str, list[specdec.Result]]) -> None:
    """A draft has its own adapter; the adapted target as its own draft is always accepted."""
    own = adapted.draft.with_adapter(adapted.folders[2])
    models, options = [*adapted.adapted, None], options_of("greedy", None)
    for draft in (own, adapted.adapted[0], specdec.drafts.ModelDraft(own, draft=adapted.draft)):
        found = specdec.generate(adapted.target, draft, PROMPTS, adapter=models, gamma=3, **options)
        assert [one.tokens for one in found] == [one.tokens for one in wanted["greedy"]]
    found = specdec.generate(
        adapted.target, adapted.adapted[0], PROMPTS[0], adapter=models[0], gamma=3, **options
    )
    assert found.tokens == wanted["greedy"][0].tokens and found.trace.acceptance_rate == 1.0


@pytest.mark.parametrize("name", ["look-ahead embeddings", "heads", "early exit"])
def test_drafts_in_a_batch_equal_those_alone(adapted: Adapted, name: str) -> None:
    """Drafts that use the target's matrices use those of each sequence's adapter."""
    draft, models = DRAFTS[name](adapted.world), [adapted.target, adapted.adapted[1], adapted.adapted[0]]
    options: dict[str, Any] = {"max_new_tokens": 12, "gamma": 2, "ignore_eos": True}
    prompts = [IDS[i : i + 20] for i in range(3)]
    found = specdec.generate(adapted.target, draft, prompts, adapter=models, **options)
    for one, model, prompt in zip(found, models, prompts, strict=True):
        alone = specdec.generate(model, draft, prompt, **options)
        assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in alone.trace.rounds]


def test_scratch_fits_the_largest_of_each_adapter(adapted: Adapted, tmp_path: Path) -> None:
    """One adapter has a large rank, the later one many inputs."""
    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    folders = [
        llama_adapter(tmp_path / "low", SETTINGS, 1, attention, r=90),
        llama_adapter(tmp_path / "inputs", SETTINGS, 2, ("self_attn.q_proj", "mlp.down_proj"), r=1),
    ]
    models = [adapted.target.with_adapter(folder) for folder in folders]
    options: dict[str, Any] = {"max_new_tokens": 6, "logits": True, "ignore_eos": True}
    prompts = [IDS[i : i + 20] for i in range(2)]
    found = specdec.generate(adapted.target, adapted.draft, prompts, adapter=models, **options)
    for one, model, prompt in zip(found, models, prompts, strict=True):
        assert np.array_equal(one.logits, specdec.generate(model, None, prompt, **options).logits)


def test_folders_samples_and_streams(adapted: Adapted, wanted: dict[str, list[specdec.Result]]) -> None:
    given, options = [str(adapted.folders[0]), adapted.folders[1]], options_of("greedy", None)
    texts = specdec.generate(adapted.target, adapted.draft, PROMPTS[:2], adapter=given, n=2, **options)
    assert [[one.tokens for one in of] for of in texts] == [[one.tokens] * 2 for one in wanted["greedy"][:2]]
    options["prompt_logprobs"] = 0
    given = [None, adapted.folders[1], adapted.folders[1]]
    both = specdec.generate(adapted.target, None, [PROMPTS[1]] * 3, adapter=given, **options)
    assert both[0].tokens != both[1].tokens == both[2].tokens == wanted["greedy"][1].tokens
    for one, model in zip(both, (adapted.target, *[adapted.adapted[1]] * 2), strict=True):
        assert np.array_equal(one.prompt_logprobs, model.score(PROMPTS[1]))
    one = specdec.generate(adapted.target, None, [PROMPTS[1]] * 2, adapter=given[1], **options)
    assert one[0].tokens == one[1].tokens == wanted["greedy"][1].tokens


def test_a_text_of_one_adapter_begins_none_of_another(adapted: Adapted) -> None:
    """Prefixes are shared neither within a batch nor in a prompt cache across adapters."""
    cache = specdec.PromptCache()
    options: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True, "logits": True}
    models = [adapted.adapted[0], adapted.target, adapted.adapted[1]]
    for _ in range(2):
        for model in models:
            alone = specdec.generate(model, None, IDS, **options)
            found = specdec.generate(
                adapted.target, adapted.draft, IDS, adapter=model, prompt_cache=cache, **options
            )
            assert found.tokens == alone.tokens and np.array_equal(found.logits, alone.logits)
    first = specdec.generate(adapted.target, None, IDS, adapter=models[2], prompt_cache=cache, **options)
    assert first.n_cached_tokens == len(IDS) - 1
    fresh = adapted.target.with_adapter(adapted.folders[2])
    assert specdec.generate(fresh, None, IDS, prompt_cache=cache, **options).n_cached_tokens == 0


def test_an_engine_serves_all(adapted: Adapted, wanted: dict[str, list[specdec.Result]]) -> None:
    models = [*adapted.adapted, None]
    options = {name: value for name, value in options_of("greedy", None).items() if name != "logits"}
    with specdec.Engine(
        adapted.target, adapted.draft, n_slots=2, prompt_cache=specdec.PromptCache()
    ) as engine:
        running = [
            engine.submit(prompt, adapter=model, prompt_logprobs=0, **options)
            for model, prompt in zip(models, PROMPTS, strict=True)
            for _ in range(2)
        ]
        found = [one.result() for one in running]
        score = engine.score(PROMPTS[1], adapter=adapted.adapted[1])
    assert np.array_equal(score.log_probs, adapted.adapted[1].score(PROMPTS[1]))
    assert [one.tokens for one in found] == [one.tokens for one in wanted["greedy"] for _ in range(2)]
    assert np.array_equal(found[2].prompt_logprobs, adapted.adapted[1].score(PROMPTS[1]))


def test_a_target_with_an_adapter_takes_others(
    adapted: Adapted, wanted: dict[str, list[specdec.Result]]
) -> None:
    """None then means the target as given."""
    target, options = adapted.adapted[0], options_of("greedy", None)
    found = specdec.generate(target, None, PROMPTS[:2], adapter=[None, adapted.folders[1]], **options)
    assert [one.tokens for one in found] == [one.tokens for one in wanted["greedy"][:2]]
    plain = specdec.generate(target, None, PROMPTS[3], adapter=adapted.target, **options)
    assert plain.tokens == wanted["greedy"][3].tokens


def test_what_tells_adapters_apart(adapted: Adapted) -> None:
    """Runs on several machines compare digests; see test_pickles.py for other processes."""
    model = adapted.adapted[0]
    assert pickle.loads(pickle.dumps(model)) is model
    merged = [specdec.load(adapted.path, adapter=folder) for folder in adapted.folders]
    files = {one.origin.reference().adapter_files for one in (adapted.target, *merged) if one.origin}
    assert len(files) == 1 + len({one.adapter_digest for one in adapted.adapted}) == 4
    assert adapted.target.with_adapter(adapted.folders[0]).adapter_digest == model.adapter_digest


def test_another_chat_template_leaves_the_adapter(adapted: Adapted) -> None:
    model = adapted.adapted[1].with_chat_template("{{ messages[0].content }}")
    assert (model.base, model.adapter) == (adapted.target, adapted.folders[1])
    options: dict[str, Any] = {"max_new_tokens": 5, "ignore_eos": True}
    found = specdec.generate(model, None, IDS, adapter=adapted.folders[0], **options)
    assert found.tokens == specdec.generate(adapted.adapted[0], None, IDS, **options).tokens
    with pytest.raises(InputError, match="cannot be pickled"):
        pickle.dumps(model)


def test_the_adapter_is_a_part_of_what_a_packed_file_was_made_of(tmp_path: Path) -> None:
    base = write_hf(tmp_path / "base", SETTINGS, seed=1)
    folders = [llama_adapter(tmp_path / name, SETTINGS, seed) for name, seed in (("a", 1), ("b", 2))]
    cache = tmp_path / "cache"
    for _ in range(2):
        for adapter in (*folders, None):
            found = specdec.load(base, cache=cache, adapter=adapter)
            assert np.array_equal(found.logits(IDS), specdec.load(base, adapter=adapter).logits(IDS))
    packed = sorted(cache.iterdir())
    assert len(packed) == 3
    llama_adapter(folders[0], SETTINGS, 9)  # the folder has changed: its file is written again
    found = specdec.load(base, cache=cache, adapter=folders[0])
    assert np.array_equal(found.logits(IDS), specdec.load(base, adapter=folders[0]).logits(IDS))
    with pytest.raises(InputError, match="adapter is given, but .* is a packed file"):
        specdec.load(packed[0], adapter=folders[0])
    unmerged = specdec.load(base, cache=cache).with_adapter(folders[1])
    assert np.array_equal(unmerged.logits(IDS), specdec.load(base).with_adapter(folders[1]).logits(IDS))


@needs_hooks
def test_memory(adapted: Adapted) -> None:
    """Any allocation may fail, for models and sessions, without leaks."""
    target, folder = adapted.target, adapted.folders[0]
    assert fail_each_allocation(lambda: target.with_adapter(folder)) >= 3
    models = [target.with_adapter(folder) for folder in adapted.folders]

    def work() -> None:
        specdec.generate(
            target, None, PROMPTS, adapter=[None, *models], batch_size=2, max_new_tokens=3, ignore_eos=True
        )

    with nothing_leaks():
        work()
    assert fail_each_allocation(work) > 3


# --------------------------------------------------------------------------------------------- refusals


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
LENGTHS = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"
HEAD = "base_model.model.lm_head.weight"
NOT_FINITE = np.full((64, 4), np.nan, np.float32)
TENSORS = low_rank_tensors(llama_shapes(SETTINGS), {}, seed=1)
ALONE = {name: None for name in TENSORS if "layers.0.self_attn.q_proj" not in name}


def changed(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write an adapter with changed fields and tensors: an array, ones of a shape, or None to remove."""
    held: dict[str, Any] = dict(TENSORS)
    for name, given in tensors.items():
        held[name] = np.ones(given, np.float32) if isinstance(given, tuple) else given
    kept = {name: array for name, array in held.items() if array is not None}
    return write_adapter(folder, adapter_config(**config), kept)


BAD_FIELDS: dict[str, list[Any]] = {
    "peft_type": ["IA3"], "bias": ["some"], "lora_bias": [True], "target_parameters": [["experts"]],
    "layer_replication": [[[0, 1]]], "init_lora_weights": ["pissa_niter_4"], "r": [None, "4"],
    "rank_pattern": [{"q_proj": 0}, {"(": 3}], "lora_alpha": ["8", 10**400],
    "alpha_pattern": [{"q_proj": 10**400}, [1]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name in BAD_FIELDS for value in BAD_FIELDS[name]]
)
def test_bad_fields(adapted: Adapted, tmp_path: Path, field: str, value: Any) -> None:
    folder = changed(tmp_path / "adapter", {field: value}, {})
    with refuses_field(folder / "adapter_config.json", field):
        adapted.target.with_adapter(folder)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, {}, "has no matching lora_magnitude_vector"),
    "dora unmerged": (
        {"use_dora": True},
        ALONE | {LENGTHS: (64,)},
        "uses DoRA .*not supported unmerged.*merge it",
    ),
    "lengths": ({"use_dora": True}, ALONE | {LENGTHS: (63,)}, r"has shape \[63\]; expected \[64\]"),
    "rank": ({"r": 5}, {}, "lora_A.weight' has 4 rows; expected 5"),
    "base alone": ({}, {"base_model.model.lm_head.base_layer.weight": (61, 64)}, "is the base of 'lm_head'"),
    "half": ({}, {Q.format("B"): None}, "lora_A.weight' has no matching lora_B"),
    "ranks": ({}, {Q.format("B"): (64, 3)}, r"expected \[rank, inputs\]"),
    "shape": ({}, {Q.format("A"): (4, 63)}, r"expected \[64, 4\] and \[4, 64\], because 'model"),
    "module": ({}, {"base_model.model.model.layers.7.x.lora_A.weight": (4, 64)}, "matching lora_B"),
    "name": ({}, {"model.layers.0.x": (4, 64)}, "does not belong to a LoRA adapter.*base_model"),
    "part": ({}, {"base_model.model.x.lora_magnitude_vector": (4,)}, "an unsupported part of LoRA"),
    "use": ({}, {HEAD: (61, 64)}, "only with modules_to_save"),
    "not finite": ({}, {Q.format("B"): NOT_FINITE}, "adapter: tensor layers.0.attn_q.weight.up: element"),
    "saved": ({"modules_to_save": ["x"]}, {HEAD: (61, 64)}, "replaces a tensor of the base.*merge it"),
    "nothing": ({}, dict.fromkeys(TENSORS), "has no tensors"),
}
"""Fields and tensors of an adapter, and the message."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_adapted_is_refused_by_name(adapted: Adapted, tmp_path: Path, case: str) -> None:
    config, tensors, message = REFUSED[case]
    with pytest.raises(CheckpointError, match=message):
        adapted.target.with_adapter(changed(tmp_path / "adapter", config, tensors))


@pytest.mark.parametrize("case", [({"lora_alpha": 1e308}, {}), ({}, {Q.format("B"): NOT_FINITE})])
def test_a_sum_that_is_not_finite_names_the_adapter(adapted: Adapted, tmp_path: Path, case: Any) -> None:
    folder = changed(tmp_path / "adapter", *case)
    with pytest.raises(CheckpointError, match="adapter_model.safetensors: '.*' is not finite with"):
        specdec.load(adapted.path, adapter=folder)


def test_modules_and_folders_that_are_not_there(adapted: Adapted, tmp_path: Path) -> None:
    shapes = llama_shapes(SETTINGS) | {"model.layers.9.self_attn.q_proj": (64, 64)}
    other = write_adapter(tmp_path / "other", adapter_config(), low_rank_tensors(shapes, {}, 1))
    with pytest.raises(CheckpointError, match=r"adapts 'model.layers.9.self_attn.*', which .* lacks"):
        adapted.target.with_adapter(other)
    with pytest.raises(FileNotFoundError, match="is a LoRA adapter folder; expected the path of its base"):
        specdec.load(other)
    with pytest.raises(FileNotFoundError, match="no such folder; expected an adapter folder"):
        specdec.load(adapted.path, adapter=tmp_path / "none")
    (tmp_path / "other" / "adapter_model.safetensors").rename(tmp_path / "other" / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="has no adapter_model.safetensors, but"):
        adapted.target.with_adapter(other)
    (tmp_path / "other" / "adapter_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="adapter_config.json"):
        adapted.target.with_adapter(other)
    config = llama_config(tie_word_embeddings=True)
    tied = specdec.load(write_hf(tmp_path / "tied", config, seed=1))
    head = write_adapter(tmp_path / "head", adapter_config(), low_rank_tensors({"lm_head": (61, 32)}, {}, 1))
    with pytest.raises(CheckpointError, match="adapts 'lm_head.weight', which"):
        tied.with_adapter(head)
    name = "base_model.model.model.embed_tokens.lora_embedding_{}"
    tensors = {name.format("A"): np.ones((4, 61), np.float32), name.format("B"): np.ones((32, 4), np.float32)}
    table = write_adapter(tmp_path / "table", adapter_config(), tensors)
    with pytest.raises(UnsupportedModelError, match="which is both embedding and head of"):
        specdec.load(tmp_path / "tied", adapter=table)


def test_embeddings_are_merged_alone(adapted: Adapted, tmp_path: Path) -> None:
    """test_peft.py tests the values, whole tensors, DoRA and biases."""
    name = "base_model.model.model.embed_tokens.lora_embedding_{}"
    files = {name.format("A"): np.ones((3, 61), np.float32), name.format("B"): np.ones((64, 3), np.float32)}
    folder = write_adapter(tmp_path / "adapter", adapter_config(r=3), files)
    assert f", merged with {str(folder)!r}," in repr(specdec.load(adapted.path, adapter=folder))
    with pytest.raises(UnsupportedModelError, match=r"embed_tokens.weight', which is not supported unmerged"):
        adapted.target.with_adapter(folder)


def test_a_head_that_was_saved_with_its_adapter(adapted: Adapted, tmp_path: Path) -> None:
    """PEFT saves heads. Merging adapts the saved one; unmerged, it must equal the base's."""
    rng, tensors = np.random.default_rng(5), canonical(adapted.path)
    down, up = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 64), (61, 4)))
    name, own = "base_model.model.lm_head", tensors["head"]
    files = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up, f"{name}.base_layer.weight": own}
    same = write_adapter(tmp_path / "same", adapter_config(), files)
    plain = write_adapter(tmp_path / "plain", adapter_config(), dict(list(files.items())[:2]))
    for dtype in ("f32", "int4"):
        base = specdec.load(adapted.path, dtype)
        found = base.with_adapter(same).logits(IDS)
        assert np.array_equal(found, base.with_adapter(plain).logits(IDS))
    moved = rng.normal(size=own.shape).astype(np.float32)
    other = write_adapter(tmp_path / "other", adapter_config(), files | {f"{name}.base_layer.weight": moved})
    merged = specdec.load(adapted.path, adapter=other)
    wanted = reference.logits(merged.core.config, tensors | {"head": moved + 2.0 * up @ down}, IDS)
    assert np.abs(merged.logits(IDS) - wanted).max() < 2e-5 * np.abs(wanted).max()
    with pytest.raises(CheckpointError, match="trained with another 'lm_head.weight' than .*merge"):
        adapted.target.with_adapter(other)
    files[f"{name}.base_layer.weight"] = own[:-1]
    smaller = write_adapter(tmp_path / "smaller", adapter_config(), files)
    with pytest.raises(
        CheckpointError, match=r"has shape \[60, 64\]; expected \[61, 64\], the shape of 'lm_head"
    ):
        specdec.load(adapted.path, adapter=smaller)


def test_adapters_are_merged_into_what_is_converted(adapted: Adapted, tmp_path: Path) -> None:
    folder = with_head(tmp_path / "adapter", 3, r=40, use_rslora=True)
    made = tmp_path / "made"
    found = run("convert", adapted.path, made, "--adapter", folder)
    assert found.exit_code == 0 and "MB" in found.output
    merged = specdec.load(adapted.path, adapter=folder)
    assert np.array_equal(specdec.load(made).logits(IDS), merged.logits(IDS))
    packed = specdec.convert(adapted.path, tmp_path / "model.specdec", "int8", adapter=folder)
    expected = specdec.load(adapted.path, "int8", adapter=folder).logits(IDS)
    assert np.array_equal(specdec.load(packed).logits(IDS), expected)
    with pytest.raises(CheckpointError, match="adapter_config.json"):
        specdec.convert(adapted.path, tmp_path / "other", adapter=tmp_path)
    with_head(folder, 4, r=4)
    with pytest.raises(CheckpointError, match="was made with the adapter .*has changed"):
        specdec.load(packed)


def test_importance_is_that_of_the_merged_model(tmp_path: Path) -> None:
    config = llama_config(vocab_size=4096, hidden_size=256, intermediate_size=256, max_position_embeddings=64)
    base = write_hf(tmp_path / "base", config, seed=1)
    shutil.copy(small_pair()[0].path / "tokenizer.json", base)
    adapter = llama_adapter(tmp_path / "adapter", config, 1)
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 4)
    merged = specdec.convert(base, tmp_path / "merged", adapter=adapter)
    found, wanted, plain = (
        specdec.convert(source, tmp_path / f"{i}.gguf", "Q4_0", importance=text, adapter=own, tokenizer=None)
        for i, (source, own) in enumerate(((base, adapter), (merged, None), (base, None)))
    )
    ids = list(range(20))
    found, wanted, plain = (specdec.load(folder).logits(ids) for folder in (found, wanted, plain))
    assert np.array_equal(found, wanted) and not np.array_equal(found, plain)


def test_wrong_arguments(adapted: Adapted) -> None:
    for prompts, given, message in (
        (IDS, 3, "adapter is an int; expected a model"), ([IDS], [None, 3], r"adapter\[1\] is an int"),
        ([IDS], [None] * 2, "a list of 2 for 1 prompt"), (IDS, [None], "a list of 1 for 1 prompt"),
        (IDS, adapted.draft, "whose weights are not those of"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            specdec.generate(adapted.target, None, prompts, adapter=given)
    model = adapted.adapted[0]
    for call in (lambda: model.with_adapter(adapted.folders[0]), model.quantization_report):
        with pytest.raises(InputError, match="has an unmerged adapter"):
            call()
    with refuses("adapter", 3):
        specdec.load(adapted.path, adapter=3)


def test_the_core_refuses_what_does_not_fit(adapted: Adapted) -> None:
    core = adapted.target.core
    down, up = np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)
    name = "layers.0.attn_q.weight"
    given = [(f"{name}.down", down, "f32"), (f"{name}.up", up, "f32")]
    assert core.adapted({name: 2}, given).base is core
    refused: list[tuple[Any, Any, str]] = [
        ({}, [], "the adapter adapts no tensor"), ({"x": 1}, [], "tensor x: not part of the model"),
        ({"layers.0.attn_norm.weight": 1}, [], "cannot be adapted, expected"),
        ({name: 0}, [], "the rank is 0"), ({name: 2}, given[:1], "layers.0.attn_q.weight.up: missing"),
        ({name: 2}, [*given, given[0]], "given twice"), ({name: 3}, given, "shape"),
        ({name: 2}, [(name, up, "f32")], "not part of the adapter"),
    ]  # fmt: skip
    for ranks, tensors, message in refused:
        with pytest.raises(ValueError, match=message):
            core.adapted(ranks, tensors)
    adapted_core = core.adapted({name: 2}, given)
    with pytest.raises(ValueError, match="the model is adapted"):
        adapted_core.adapted({name: 2}, given)
    with pytest.raises(TypeError, match="ranks: expected integers"):
        core.adapted({name: 2.0}, given)


def test_on_the_command_line(adapted: Adapted, tmp_path: Path) -> None:
    """`--adapter` merges, with and without a draft."""
    target, _ = small_pair()
    fields = json.loads((target.path / "config.json").read_text())
    folder = llama_adapter(tmp_path / "adapter", fields, 1)
    arguments = [*"--temperature 0 --repetition-penalty 1 --max-new-tokens 12".split(), "Once upon a time"]
    found = [
        run("generate", "--target", target.path, *own, *arguments).stdout
        for own in (["--adapter", folder], ["--adapter", folder, "--draft", MODELS / "draft"], [])
    ]
    merged = specdec.load(target.path, adapter=folder)
    assert found[0] == found[1] != found[2]
    assert specdec.generate(merged, None, "Once upon a time", max_new_tokens=12).text.strip() in found[0]
    refused = run("generate", "--adapter", tmp_path, *arguments)
    assert (
        refused.exit_code != 0 and "has no adapter_config.json; expected an adapter folder" in refused.output
    )
