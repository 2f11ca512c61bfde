"""Native multi-token prediction (MTP) blocks of every layout of files, and heads with some tokens."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

import specdec
from specdec import drafts
from specdec.errors import CheckpointError, InputError, UnsupportedModelError
from tensor_files import tensors_in, write_tensors
from test_eagle import PROMPT, assert_chains_of_the_paper
from trained import small_pair
from worlds.eagles import (
    EagleFolder,
    as_draft,
    eagle1,
    eagle_folder,
    folder_with_block,
    mtp_block,
    mtp_folder,
    qwen3_with,
    random,
)
from worlds.families import CONFIGS, random_weights
from worlds.folders import llama_config, write_hf
from worlds.gguf_files import CASES, write_gguf
from worlds.gguf_files import tensors as gguf_tensors
from worlds.learned import all_records, check_distributions, open_session

OF_TARGET: dict[str, Any] = {"vocab_size": 17, "max_position_embeddings": 120}
RUN: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "logits": True}


@pytest.fixture(params=["MiMo", "Qwen", "DeepSeek", "ERNIE", "EXAONE", "Hunyuan"])
def world(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[specdec.Model, EagleFolder]:
    """A target with a block in a layout; Qwen 3 represents the families of the other layouts."""
    if request.param != "MiMo":
        monkeypatch.setitem(*qwen3_with(request.param))
    return mtp_folder(tmp_path, request.param, **OF_TARGET)


def test_chains_are_those_of_the_definition(world: tuple[specdec.Model, EagleFolder]) -> None:
    """The block's tensors are no part of the target; every option of the norms is the definition's."""
    target, block = world
    result = assert_chains_of_the_paper(block, drafts.MTP(target), max_new_tokens=30)
    assert result.trace.n_drafted > 40
    assert len(result.trace.acceptance_by_position) == 3
    for normed_input, normed_feedback in ((False, True), (True, False)):
        captures = (target.config.n_layer + normed_input,)
        other = replace(block, captures=captures, flags=block.flags | {"norm_output": normed_feedback})
        draft = drafts.MTP(target, normed_input=normed_input, normed_feedback=normed_feedback)
        assert draft.captures == captures
        assert_chains_of_the_paper(other, draft, max_new_tokens=20)


def test_targets_without_one_block_are_refused(tmp_path: Path) -> None:
    many, _ = mtp_folder(tmp_path / "many", num_nextn_predict_layers=3)
    none = specdec.load(write_hf(tmp_path / "none", llama_config()), tokenizer=False)
    for target, expected in ((many, "'num_nextn_predict_layers' is 3"), (none, "has no supported MTP")):
        with pytest.raises(UnsupportedModelError, match=expected):
            drafts.MTP(target)


TREES: dict[str, Any] = {
    "chain": None, "tree": drafts.StaticTree((2, 2, 1)), "grown": drafts.DynamicTree(8, width=2, steps=4),
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
def test_output_is_that_of_plain_decoding(world: tuple[specdec.Model, EagleFolder], tree: str) -> None:
    """Tokens and logits, with the whole head or a part, alone and in a batch, with any gamma."""
    target, _ = world
    prompts = [PROMPT, PROMPT * 3, PROMPT[:1]]
    plain = specdec.generate(target, None, prompts, **RUN)
    gammas = range(9) if tree == "chain" else (8,)
    for head_tokens in (None, range(0, 17, 2)):
        draft = drafts.MTP(target, tree=TREES[tree], head_tokens=head_tokens)
        for gamma in gammas:
            got = specdec.generate(target, draft, prompts, gamma=gamma, **RUN)
            for one, expected in zip(got, plain, strict=True):
                assert one.tokens == expected.tokens and np.array_equal(one.logits, expected.logits)
                assert (one.trace.n_drafted > 0) == (gamma > 0)


def test_an_engine_and_cached_prompts(world: tuple[specdec.Model, EagleFolder]) -> None:
    """Requests that share slots, and turns that continue cached texts, have the plain tokens."""
    target, _ = world
    draft, cache, text = drafts.MTP(target), specdec.PromptCache(), PROMPT
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    for turn in range(3):
        plain = specdec.generate(target, None, text, **how, logits=True)
        found = specdec.generate(target, draft, text, **how, logits=True, prompt_cache=cache)
        assert found.tokens == plain.tokens and np.array_equal(found.logits, plain.logits)
        assert found.n_cached_tokens >= (0, len(PROMPT), len(PROMPT) + 12)[turn] and found.trace.n_drafted
        text = [*text, *plain.tokens, 3]
    prompts = [PROMPT, PROMPT[:1], text, PROMPT * 2]
    with specdec.Engine(target, draft, n_slots=2, n_text=100, prompt_cache=cache) as engine:
        requests = [engine.submit(prompt, **how) for prompt in prompts]
        for request, prompt in zip(requests, prompts, strict=True):
            assert request.result().tokens == specdec.generate(target, None, prompt, **how).tokens


# --------------------------------------------------------------------------------------------- GGUF files

_OUTSIDE = {
    "token_norm": "enorm", "feature_norm": "hnorm", "projection": "eh_proj",
    "output_norm": "shared_head_norm",
}  # fmt: skip
_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
CASE = replace(CASES["qwen3"], config={
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "vocab_size": 17, "num_hidden_layers": 2, "max_position_embeddings": 120,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
})  # fmt: skip
"""A Qwen 3 whose rows have whole blocks."""


def block_in_gguf(folder: Path) -> tuple[EagleFolder, dict[str, Any]]:
    """A random block for `CASE`, and its tensors by their names in a GGUF file."""
    config, weights = CASE.folder()
    block = mtp_block(config)
    stored = {}
    for name, array in block.items():
        base = name.removesuffix(".weight")
        ours = _LAYER[base.removeprefix("layers.0.")] if "layers" in base else f"nextn.{_OUTSIDE[base]}"
        stored[f"blk.2.{ours}.weight"] = array
    target = specdec.load(write_hf(folder, config, weights), tokenizer=False)
    return as_draft(target, config, block), stored


NEXTN = {"block_count": 3, "nextn_predict_layers": 1}


def test_the_block_of_a_gguf_file_is_a_draft(tmp_path: Path) -> None:
    """From the target's file, in its types, or a separate file; refusals name what other files lack."""
    block, stored = block_in_gguf(tmp_path / "folder")
    stored |= {"blk.2.nextn.embed_tokens.weight": np.zeros((17, 32), "f4")}  # an unread copy
    target = specdec.load(write_gguf(tmp_path / "m.gguf", CASE, changes=NEXTN, more=stored), tokenizer=False)
    assert target.config.n_layer == 2
    assert_chains_of_the_paper(block, drafts.MTP(target), max_new_tokens=20)
    without = specdec.load(write_gguf(tmp_path / "without.gguf", CASE), tokenizer=False)
    with pytest.raises(UnsupportedModelError, match=r"without.gguf: has no MTP block; .*-MTP-GGUF"):
        drafts.MTP(without)
    apart = _only_block(tmp_path / "mtp-m.gguf", stored)
    with pytest.raises(UnsupportedModelError, match=r"holds only an MTP block; .* drafts.MTP\(target, "):
        specdec.load(apart)
    for opened in (
        drafts.MTP(without, apart),
        drafts.load(apart, without),
        drafts.named(f"mtp:{apart}", without),
    ):
        assert_chains_of_the_paper(block, opened, max_new_tokens=9)
    shallow = specdec.load(write_hf(tmp_path / "s", llama_config(num_hidden_layers=1)), tokenizer=False)
    with pytest.raises(InputError, match="for a target of 2 layers; expected the 1 of"):
        drafts.MTP(shallow, apart)


def _only_block(path: Path, stored: dict[str, Any]) -> Path:
    """Write a file of the block, the embedding and the head, as llama.cpp's converter does."""
    config, weights = CASE.folder()
    kept = {name: array for name, array in weights.items() if ".layers." not in name}
    case = replace(CASE)
    object.__setattr__(case, "folder", lambda: (config, kept))
    return write_gguf(path, case, changes=NEXTN, more=stored)


def test_the_block_of_a_hybrid_is_the_same_in_both_files(tmp_path: Path) -> None:
    """Qwen3.5: its gate, and norms that the file has with 1 added."""
    case = CASES["qwen35"]
    config, weights = case.folder()
    rng, d = np.random.default_rng(0), config["hidden_size"]
    of_layer = {name: x for name, x in weights.items() if ".layers.1." in name}
    block = {name: x + rng.normal(0.0, 0.1, x.shape).astype("f4") for name, x in of_layer.items()}
    outside = random(rng, {"enorm": (d,), "hnorm": (d,), "shared_head_norm": (d,), "eh_proj": (d, 2 * d)})
    names = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
    stored = {name.replace("model.layers.1.", "mtp.layers.0."): x for name, x in block.items()} | {
        f"mtp.{names.get(name, 'norm')}.weight": x - np.float32("norm" in name) for name, x in outside.items()
    }
    fields = config | {"mtp_num_hidden_layers": 1}
    folder = specdec.load(write_hf(tmp_path / "folder", fields, weights | stored), tokenizer=False)
    more = gguf_tensors(case, config, {name.replace(".1.", ".2.", 1): x for name, x in block.items()})
    more |= {f"blk.2.nextn.{name}.weight": x for name, x in outside.items()}
    file = specdec.load(write_gguf(tmp_path / "m.gguf", case, changes=NEXTN, more=more), tokenizer=False)
    runs = [specdec.generate(target, drafts.MTP(target), PROMPT, **RUN) for target in (folder, file)]
    assert runs[0].tokens == runs[1].tokens and runs[0].trace.n_drafted > 50
    assert [one.drafted for one in runs[0].trace.rounds] == [one.drafted for one in runs[1].trace.rounds]


def test_a_quantized_file_keeps_its_types(tmp_path: Path) -> None:
    _, stored = block_in_gguf(tmp_path / "folder")

    def types(name: str) -> GGMLQuantizationType:
        is_matrix = "norm" not in name
        return GGMLQuantizationType.Q5_0 if is_matrix else GGMLQuantizationType.F32

    file = write_gguf(tmp_path / "m.gguf", CASE, changes=NEXTN, more=stored, types=types)
    target = specdec.load(file, tokenizer=False)
    kept, in_int8 = drafts.MTP(target, head_tokens=[1, 4, 9]), drafts.MTP(target, dtype="int8")
    assert (kept.dtype, in_int8.dtype) == ("file", "int8")
    assert kept.core.model.n_bytes < 0.75 * in_int8.core.model.n_bytes
    assert kept.__reduce__()[0].keywords["dtype"] is None
    plain = specdec.generate(target, None, PROMPT, **RUN)
    for draft in (kept, in_int8):
        got = specdec.generate(target, draft, PROMPT, **RUN)
        assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)


# ------------------------------------------------------------------------------------------ reduced heads


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_a_reduced_head_has_rows_of_the_targets(dtype: Any, tmp_path: Path) -> None:
    """Its distributions are those of the whole head restricted to its tokens, in the target's format."""
    folder = write_hf(tmp_path / "target", llama_config(vocab_size=90, max_position_embeddings=120), seed=3)
    target = specdec.load(folder, dtype, tokenizer=False)
    path, tokens = eagle1(target).write(tmp_path / "draft"), [*range(3, 80, 2), 1]
    tree = drafts.StaticTree((3, 1))
    whole = drafts.Eagle(path, target, tree=tree)
    part = drafts.Eagle(path, target, tree=tree, head_tokens=tokens)
    assert part.head_tokens is not None and part.head_tokens.tolist() == sorted(tokens)
    probs = [
        all_records(open_session(target, draft, [PROMPT], max_new_tokens=4))[0]["draft_probs"][1]
        for draft in (whole, part)
    ]
    expected = np.where(np.isin(np.arange(90), tokens), probs[0], 0.0)
    np.testing.assert_allclose(probs[1], expected / expected.sum(), rtol=1e-5)


def test_head_tokens_are_counted_or_listed(tmp_path: Path) -> None:
    target, _ = mtp_folder(tmp_path, vocab_size=40)
    table = drafts.Unigram([7, 3, 3, 39, 7, 3], 40)
    assert table.frequent_tokens(4).tolist() == [3, 7, 39, 0]
    for given, chosen in ((5, [0, 1, 2, 3, 4]), (table.frequent_tokens(3), [3, 7, 39])):
        assert np.array_equal(drafts.MTP(target, head_tokens=given).head_tokens, chosen)
    assert "3 head tokens" in repr(drafts.MTP(target, head_tokens=[3, 7, 39]))
    assert drafts.MTP(target, head_tokens=table).head_tokens is None  # fewer tokens than it takes
    assert drafts.MTP(target).head_tokens is drafts.MTP(target, head_tokens=40).head_tokens is None
    drafted = specdec.generate(target, drafts.MTP(target, head_tokens=[3, 7]), PROMPT, **RUN).trace
    assert drafted.n_drafted and {token for one in drafted.rounds for token in one.drafted} <= {3, 7}
    for wrong, expected in (
        ([3, 3], r"head_tokens\[1\] is 3"), ([40], r"head_tokens\[0\] is 40"), (0, "head_tokens is 0"),
        ("text", "head_tokens is .*n-gram table"), (drafts.Unigram([1], 3), "a table of 3"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=expected):
            drafts.MTP(target, head_tokens=wrong)  # type: ignore[arg-type]


def test_special_tokens_are_always_in_a_reduced_head() -> None:
    _, target = small_pair()
    draft = drafts.Eagle(eagle_folder(target, "eagle1"), target, head_tokens=[500, 600])
    assert {*target.eos_ids, 500, 600} <= set(draft.head_tokens.tolist()) and len(draft.head_tokens) < 10


@pytest.mark.parametrize(("layout", "own"), [("MiMo", "mtp_layers.0."), ("DeepSeek", "layers.2.")])
def test_a_missing_tensor_has_its_name_in_the_file(
    layout: str, own: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if layout != "MiMo":
        monkeypatch.setitem(*qwen3_with(layout))
    target, _ = mtp_folder(tmp_path, layout)
    file, name = tmp_path / "model.safetensors", f"model.{own}self_attn.q_proj.weight"
    write_tensors(file, {key: held.array() for key, held in tensors_in(file).items() if key != name})
    with pytest.raises(CheckpointError, match=f"tensor '{re.escape(name)}' is missing"):
        drafts.MTP(target)


def test_a_target_without_attention_has_no_block(tmp_path: Path) -> None:
    """As the block has the shape of a layer with attention."""
    fields = {"layer_types": ["linear_attention"] * 2, "mtp_num_hidden_layers": 1}
    config = CONFIGS["Qwen3_5ForCausalLM"] | fields | {"architectures": ["Qwen3_5ForCausalLM"]}
    weights = random_weights("Qwen3_5ForCausalLM", config) | {"mtp.norm.weight": np.ones(16, "f4")}
    target = specdec.load(write_hf(tmp_path, config, weights), tokenizer=False)
    with pytest.raises(UnsupportedModelError, match="has no layer with attention, which"):
        drafts.MTP(target)


# ---------------------------------------------------------------------------------------- real families

_TINY: dict[str, Any] = {
    "vocab_size": 17, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 120, "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2, "num_experts": 4, "eos_token_id": 2}
REAL: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "glm4_moe": ("Glm4Moe", {
        "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "use_qk_norm": True,
        "routed_scaling_factor": 1.5,
    }, {"mtp_block.": "model.layers.2.", "post_norm.": "model.layers.2.shared_head.norm.",
        "": "model.layers.2."}),
    "qwen3_5": ("Qwen3_5", {
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
    }, {"mtp_block.": "mtp.layers.0.", "post_norm.": "mtp.norm.", "eh_proj.": "mtp.fc.",
        "enorm.": "mtp.pre_fc_norm_embedding.", "hnorm.": "mtp.pre_fc_norm_hidden."}),
    "exaone_moe": ("ExaoneMoe", _EXPERTS | {"sliding_window": 99}, {
        "mtp_block.": "mtp.layers.0.", "post_norm.": "mtp.norm.", "eh_proj.": "mtp.fc.",
        "enorm.": "mtp.pre_fc_norm_embedding.", "hnorm.": "mtp.pre_fc_norm_hidden."}),
    "hy_v3": ("HYV3", _EXPERTS, {
        "mtp_block.": "model.layers.2.", "post_norm.": "model.layers.2.final_layernorm.",
        "": "model.layers.2."}),
    "ernie4_5_moe": ("Ernie4_5_Moe", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24,
    }, {"mtp_block.": "model.mtp_block.0.", "eh_proj.": "model.mtp_linear_proj.0.",
        "enorm.": "model.mtp_emb_norm.0.", "hnorm.": "model.mtp_hidden_norm.0.",
        "post_norm.": "model.norm."}),
}  # fmt: skip
"""Model types: prefix of their classes, configuration, and files' prefixes of the tensors of a block."""


@pytest.mark.oracle
@pytest.mark.parametrize("model_type", REAL)
def test_blocks_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    """Trees of drafts over rounds that accept some; output of mixtures and recurrent layers stays plain."""
    import torch
    import transformers
    from transformers.modeling_layers import MtpLayer

    torch.manual_seed(0)
    prefix, own, names = REAL[model_type]
    classes = getattr(transformers.models, model_type)
    modules = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    kind = "TextConfig" if model_type == "qwen3_5" else "Config"
    config = getattr(classes, f"{prefix}{kind}")(**_TINY, **own)
    model = getattr(classes, f"{prefix}ForCausalLM")(config).eval()
    is_dense = model_type in ("exaone_moe", "ernie4_5_moe")  # as their first layers
    layer = MtpLayer(
        config, getattr(modules, f"{prefix}DecoderLayer"), getattr(modules, f"{prefix}RMSNorm"), 1 - is_dense
    ).eval()
    from_one = model_type != "qwen3_5"  # whose norms are 1 + weight
    for name, weights in [*model.named_parameters(), *layer.named_parameters()]:
        weights.data.normal_(float("norm" in name and from_one), 0.2)
    if model_type == "ernie4_5_moe":
        layer.post_norm = model.model.norm
    model.save_pretrained(tmp_path)
    stored = {}
    for name, array in layer.state_dict().items():
        ours = next(one for one in names if name.startswith(one))
        stored[names[ours] + name.removeprefix(ours)] = array.numpy()
    file = tmp_path / "model.safetensors"
    held = {name: one.array() for name, one in tensors_in(file).items()}
    write_tensors(file, held | stored)
    if model_type == "qwen3_5":
        fields = json.loads((tmp_path / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
        (tmp_path / "config.json").write_text(json.dumps(fields))
    target = specdec.load(tmp_path, "f32", tokenizer=False)
    draft = drafts.MTP(target, tree=drafts.StaticTree((2, 2, 1)))

    @torch.no_grad()
    def expected(text: list[int], path: list[int]) -> Any:
        states = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][:, :-1]
        for n in range(len(path) + 1):
            ids = torch.tensor([(text + path)[1 : len(text) + n]])
            places = torch.arange(ids.shape[1])[None]
            angles = model.model.rotary_emb(states, places)
            out = layer(model.get_input_embeddings()(ids), states, angles, None, places, None)
            states = torch.cat([states, out[:, -1:]], dim=1)
        return model.lm_head(out[0, -1]).softmax(-1).numpy()

    n_nodes, n_accepted = check_distributions(target, draft, [PROMPT], expected, atol=1e-4, max_new_tokens=25)
    assert n_nodes > 20 and n_accepted > 2
    prompts = [PROMPT, PROMPT * 3]
    plain = specdec.generate(target, None, prompts, **RUN)
    for gamma in range(1, 9):
        draft = drafts.MTP(target, head_tokens=range(0, 17, 1 + gamma % 2))
        for got, expected_run in zip(
            specdec.generate(target, draft, prompts, gamma=gamma, **RUN), plain, strict=True
        ):
            assert got.tokens == expected_run.tokens and np.array_equal(got.logits, expected_run.logits)


# ---------------------------------------------------------------------------------------------- conversion


def _same_drafts(first: specdec.Model, second: specdec.Model, *, other: Path | None = None) -> None:
    """Check that two targets and their blocks decode and draft the same tokens."""
    runs = [
        specdec.generate(target, drafts.MTP(target, path), PROMPT, **RUN)
        for target, path in ((first, None), (second, other))
    ]
    assert runs[0].tokens == runs[1].tokens and runs[0].trace.n_drafted > 30
    assert [one.drafted for one in runs[0].trace.rounds] == [one.drafted for one in runs[1].trace.rounds]


@pytest.mark.parametrize("type", ["F32", "BF16", "INT8"])
def test_converted_folders_keep_the_block(
    type: str, world: tuple[specdec.Model, EagleFolder], tmp_path: Path
) -> None:
    target, _ = world
    folder = specdec.convert(target.path, tmp_path / "new", type, tokenizer=False)
    again = specdec.convert(folder, tmp_path / "again", type, tokenizer=False)
    dtype: Any = {"F32": "f32", "BF16": "bf16", "INT8": "int8"}[type]
    first = specdec.load(target.path, dtype, tokenizer=False)
    for path in (folder, again):
        _same_drafts(first, specdec.load(path, dtype, tokenizer=False))


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35", "exaone-moe"])
def test_gguf_files_keep_the_block(architecture: str, tmp_path: Path) -> None:
    """From a folder to a file, and back to a folder; mixtures of types hold it too."""
    folder = folder_with_block(CASES[architecture], tmp_path / "folder")
    target = specdec.load(folder, "f32", tokenizer=False)
    file = specdec.convert(folder, tmp_path / "m.gguf", "F32", tokenizer=False)
    in_file = specdec.load(file, tokenizer=False)
    assert in_file.config.n_layer == target.config.n_layer
    _same_drafts(target, in_file)
    back = specdec.convert(file, tmp_path / "back", tokenizer=False)
    _same_drafts(target, specdec.load(back, "f32", tokenizer=False))
    mixed = specdec.convert(folder, tmp_path / "k.gguf", "Q4_K_M", tokenizer=False)
    target = specdec.load(mixed, tokenizer=False)
    plain, got = (specdec.generate(target, one, PROMPT, **RUN) for one in (None, drafts.MTP(target)))
    assert got.tokens == plain.tokens and got.trace.n_drafted > 30


def test_what_cannot_hold_the_block_says_so(tmp_path: Path) -> None:
    """Packed files, files of architectures without it, and models with several blocks."""
    folder = folder_with_block(CASES["qwen3next"], tmp_path / "folder")
    with pytest.warns(UserWarning, match="'qwen3next' files have no place for its MTP block"):
        file = specdec.convert(folder, tmp_path / "m.gguf", "F32", tokenizer=False)
    target = specdec.load(folder, "f32", tokenizer=False)
    _same_drafts(target, specdec.load(file, tokenizer=False), other=folder)
    with pytest.warns(UserWarning, match=r"m.specdec: packed files do not hold the MTP block; drafts.MTP\("):
        packed = specdec.convert(folder, tmp_path / "m.specdec", tokenizer=False)
    _same_drafts(target, specdec.load(packed), other=folder)
    many, _ = mtp_folder(tmp_path / "many", num_nextn_predict_layers=3)
    with pytest.warns(UserWarning, match="leaving out MTP blocks: .*num_nextn_predict_layers"):
        specdec.convert(many.path, tmp_path / "new", tokenizer=False)
