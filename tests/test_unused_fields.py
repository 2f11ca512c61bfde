"""No checkpoint field is dropped silently: it has an effect, is harmless, or causes a warning."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import specdec
from lazily import peft
from specdec.checkpoints import open_checkpoint
from specdec.errors import CheckpointError, SpecdecError, UnsupportedModelError, UnusedFieldWarning
from worlds.adapters import adapter_config, llama_shapes, low_rank_tensors, write_adapter
from worlds.families import ARCHITECTURES, CONFIGS, GIVEN, MODEL_TYPES, TEXT_FIELDS, read_config, tiny_folder
from worlds.gguf_files import CASES, write_gguf

LLAMA = CASES["llama"]
IDS = list(range(1, 17))


def warned(act: Callable[[], Any]) -> list[str]:
    """Return the fields named by warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [
        name for one in caught if isinstance(one.message, UnusedFieldWarning) for name in one.message.names
    ]


write = tiny_folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_unknown_field_of_each_family(tmp_path: Path, name: str) -> None:
    text_field = TEXT_FIELDS.get(name)
    changes: dict[str, Any] = {"invented": 1}
    expected = ["invented"]
    if text_field:
        changes[text_field] = CONFIGS[name][text_field] | {"devised": [2]}
        expected = [f"{text_field}.devised", "invented"]
    folder = write(tmp_path, name, **changes)
    assert sorted(warned(lambda: specdec.load(folder))) == sorted(expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("field", ["is_causal", "use_bidirectional_attention", "add_cross_attention"])
def test_attention_that_no_family_has(tmp_path: Path, name: str, field: str) -> None:
    text_field = TEXT_FIELDS.get(name)
    value = field != "is_causal"
    for changes in [
        {field: value},
        *([{text_field: CONFIGS[name][text_field] | {field: value}}] if text_field else []),
    ]:
        with pytest.raises(UnsupportedModelError, match=field):
            open_checkpoint(write(tmp_path, name, **changes))
    open_checkpoint(write(tmp_path, name, **{field: not value}))


def test_a_model_type_of_another_architecture(tmp_path: Path) -> None:
    """specdec uses ``architectures``, transformers the type."""
    folder = write(tmp_path, "MistralForCausalLM", model_type="llama")
    assert warned(lambda: specdec.load(folder)) == ["model_type"]
    for model_type in ("mistral", "my_own", None):
        folder = write(tmp_path, "MistralForCausalLM", model_type=model_type)
        assert warned(lambda: specdec.load(folder)) == []  # noqa: B023


@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
def test_an_unknown_field_of_a_rotation(tmp_path: Path, field: str) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "invented": 3}
    folder = write(tmp_path, "MistralForCausalLM", **{field: scaling})
    assert warned(lambda: specdec.load(folder)) == [f"{field}.invented"]


@pytest.mark.parametrize("name", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_one_rotation_where_layers_have_two(tmp_path: Path, name: str) -> None:
    """transformers ignores fields outside the layer types."""
    rope = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(CheckpointError, match="'rope_parameters' is .*full_attention, sliding_attention"):
        open_checkpoint(write(tmp_path, name, rope_parameters=rope))
    open_checkpoint(write(tmp_path, name, rope_parameters=None, rope_scaling=rope))


def test_one_warning_names_file_and_fields(tmp_path: Path) -> None:
    folder = write(tmp_path, "LlamaForCausalLM", invented=1, devised=None, contrived=False)
    with pytest.warns(UnusedFieldWarning) as caught:
        specdec.load(folder)
    (one,) = caught
    assert one.message.file == folder / "config.json" and one.message.names == ("invented", "contrived")
    assert "config.json: fields 'invented', 'contrived'" in str(one.message)
    assert one.filename == __file__


WITHOUT_CLASS = {"LamdaForCausalLM", "MiMoForCausalLM"}
"""Families that transformers has no configuration class for."""
PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_configs.json").read_text())
"""As several versions of transformers and other programs write them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_load_without_a_warning(name: str) -> None:
    read_config(PUBLISHED[name], name)  # warnings are errors here


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in WITHOUT_CLASS])
def test_class_defaults_load_without_a_warning(name: str) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[MODEL_TYPES[name]](**GIVEN.get(name, {}))
    for use_diff in (False, True):
        read_config(json.loads(config.to_json_string(use_diff=use_diff)), name)


def test_fields_of_a_quantization(tmp_path: Path) -> None:
    folder = specdec.convert(write(tmp_path / "folder", "LlamaForCausalLM"), tmp_path / "codes", "int8")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    quantization = config["quantization_config"]
    quantization["invented"] = 1
    quantization["config_groups"]["group_0"]["devised"] = 2
    quantization["config_groups"]["group_0"]["weights"]["contrived"] = 3
    file.write_text(json.dumps(config))
    group = "quantization_config.config_groups.group_0"
    assert sorted(warned(lambda: specdec.load(folder))) == [
        f"{group}.devised", f"{group}.weights.contrived", "quantization_config.invented",
    ]  # fmt: skip


# ------------------------------------------------------------------------------- generation_config.json


def generation(folder: Path, **values: Any) -> Path:
    write(folder, "LlamaForCausalLM", model_type="llama")
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


ASKING = {
    "begin_suppress_tokens": [3], "constraints": [1], "diversity_penalty": 0.5, "dola_layers": "low",
    "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.5,
    "exponential_decay_length_penalty": [5, 1.1], "force_words_ids": [[3]], "forced_eos_token_id": 2,
    "guidance_scale": 1.5, "max_time": 2.0, "min_length": 3,
    "num_beam_groups": 2, "num_beams": 4, "penalty_alpha": 0.6,
    "stop_strings": ["end"], "token_healing": True, "watermarking_config": {"bias": 2.5},
    "sequence_bias": [[[3, 4], -1.0]], "bad_words_ids": [[3, "4"]],
}  # fmt: skip
ASKING_SAMPLING = {"epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4, "top_h": 0.4, "typical_p": 0.9}


@pytest.mark.parametrize("name", [*ASKING, *ASKING_SAMPLING])
def test_a_setting_of_texts_that_is_not_applied(tmp_path: Path, name: str) -> None:
    """Warned about in generation_config.json, or in config.json if there is no such file."""
    sampled = name in ASKING_SAMPLING
    values = {name: (ASKING | ASKING_SAMPLING)[name], "do_sample": sampled}
    assert warned(lambda: specdec.load(generation(tmp_path / "one", **values))) == [name]
    other = write(tmp_path / "other", "LlamaForCausalLM", **values)
    assert warned(lambda: specdec.load(other)) == [name]
    (other / "generation_config.json").write_text("{}")
    assert warned(lambda: specdec.load(other)) == []
    if sampled:
        greedy = generation(tmp_path / "two", **values | {"do_sample": False})
        assert warned(lambda: specdec.load(greedy)) == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"invented": 1, "top_p": 0.5}, ["invented"]),
        ({"forced_bos_token_id": 3}, ["forced_bos_token_id"]),  # after a prompt of one token in transformers
        ({"forced_bos_token_id": None}, []),
        # transformers applies them in the other order
        ({"sequence_bias": [[[3], -1.0]], "repetition_penalty": 1.5}, ["sequence_bias"]),
        *(({"sequence_bias": [[[3], x], [[4], 2]]}, ["sequence_bias"]) for x in (-1e39, 10**400, "a", True)),
    ],
    ids=range(8),
)
def test_settings_that_are_warned_of(tmp_path: Path, values: dict[str, Any], names: list[str]) -> None:
    assert warned(lambda: specdec.load(generation(tmp_path, **values))) == names


@pytest.mark.parametrize("value", [1, "true", []])
def test_sampling_that_is_neither_true_nor_false(tmp_path: Path, value: Any) -> None:
    folder = generation(tmp_path, do_sample=value, top_p=0.5)
    with pytest.warns(UserWarning, match="'do_sample' is"):
        assert specdec.load(folder).default_sampling == {}


@pytest.mark.oracle
def test_neutral_settings_of_texts(tmp_path: Path) -> None:
    """All settings of transformers are known, and its defaults cause no warning."""
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_original")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        specdec.load(generation(tmp_path, **dict.fromkeys(known, 7)))
    assert caught and not any("not known" in str(one.message) for one in caught)
    defaults = GenerationConfig._get_default_generation_params()
    assert warned(lambda: specdec.load(generation(tmp_path, **defaults | {"do_sample": True}))) == []


SUPPRESSING: list[dict[str, Any]] = [
    {"suppress_tokens": [5, 11, 99]},
    {"sequence_bias": [[[7], -50.0], [[12], 1.5], [[7], 2.0]]},
    {"bad_words_ids": [[13], [2], [7]]},
    {"suppress_tokens": [5], "sequence_bias": [[[5], 9.0], [[6], 3.0]], "bad_words_ids": [[11]]},
    {"bad_words_ids": [[13, 13], [10, 4], [5, 5, 5], [2]]},
    {"eos_token_id": 7, "min_new_tokens": 6},
]


@pytest.mark.oracle
@pytest.mark.parametrize("values", SUPPRESSING)
def test_what_files_forbid_is_what_transformers_forbids(tmp_path: Path, values: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = generation(tmp_path, **{"eos_token_id": 2, "pad_token_id": 0} | values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 99 is no token
        model = specdec.load(folder)
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    differs = False
    for prompt in ([1], [3, 4], [8, 1, 6], [13, 10]):
        expected = network.generate(torch.tensor([prompt]), max_new_tokens=12)[0, len(prompt) :].tolist()
        found = specdec.generate(model, None, prompt, max_new_tokens=12, **model.default_sampling).tokens
        plain = specdec.generate(model, None, prompt, max_new_tokens=12).tokens
        assert list(found) == expected
        differs |= list(plain) != expected
    assert differs


def test_ends_of_text_are_never_bad_words(tmp_path: Path) -> None:
    """As in NoBadWordsLogitsProcessor; ``suppress_tokens`` may forbid them."""
    folder = generation(tmp_path, eos_token_id=[10, 11], bad_words_ids=[[10], [13]])
    assert specdec.load(folder).default_sampling == {"logit_bias": {13: -np.inf}}
    folder = generation(tmp_path, eos_token_id=10, suppress_tokens=[10])
    assert specdec.load(folder).default_sampling == {"logit_bias": {10: -np.inf}}


# ------------------------------------------------------------------------------------------------ GGUF


@pytest.mark.parametrize("name", CASES)
def test_an_unknown_key_of_each_architecture(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = write_gguf(tmp_path / "model.gguf", case, changes={"invented": 1})
    assert warned(lambda: specdec.load(path)) == [f"{case.architecture}.invented"]


def test_unknown_keys_of_other_groups(tmp_path: Path) -> None:
    keys = ["general.invented", "general.sampling.devised", "tokenizer.ggml.invented", "split.invented"]
    keys += ["quantize.invented", "another.key"]
    path = write_gguf(tmp_path / "model.gguf", LLAMA, changes=dict.fromkeys(keys, 1))
    assert sorted(warned(lambda: specdec.load(path))) == sorted(keys)


def _keys(*groups: str) -> Iterator[str]:
    for group in groups:
        for name, key in vars(getattr(gguf.Keys, group)).items():
            if isinstance(key, str) and not name.startswith("__"):
                yield key


def test_keys_of_other_groups_that_are_known(tmp_path: Path) -> None:
    """Keys of the package gguf and of quantization programs."""
    names = {
        key.replace("{id}", "0").replace("{name}", "rag") for key in _keys("General", "Tokenizer", "IMatrix")
    }
    names |= {"quantize.imatrix.file", "quantize.imatrix.entries_count", "mradermacher.quantized_by"}
    for name in names - {"general.architecture", "general.alignment"}:
        path = write_gguf(tmp_path / "model.gguf", LLAMA, changes={name: 1})
        with warnings.catch_warnings(record=True) as caught, suppress(SpecdecError):  # of another type
            warnings.simplefilter("always")
            specdec.load(path)
        assert not any("not known" in str(one.message) for one in caught), name


# Keys without effect on the output: sizes that tensors repeat, and the file's provenance.
NO_EFFECT = {
    "vocab_size", "pooling_type", "tensor_data_layout", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "attention.layer_norm_epsilon", "classifier.output_labels",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "attention.sliding_window_pattern",  # without a window
    "rope.scaling.type",  # without a factor
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "gptneox", "falcon", "command-r", "olmoe", "t5"])
def test_no_key_of_gguf_is_without_effect(tmp_path: Path, name: str) -> None:
    """Each key of the package gguf changes logits, is refused or warned about, or is harmless."""
    case, source = CASES[name], [3, 9, 4, 11, 2] if name == "t5" else None
    plain = specdec.load(write_gguf(tmp_path / "model.gguf", case)).logits(IDS[:12], source)
    silent = set()
    for template in sorted(set(_keys("LLM", "Attention", "Rope", "SSM", "WKV", "Classifier"))):
        key = template.replace("{arch}.", "").replace("{dense}", "dense_1")
        values = (0.375, 3)
        value: Any = values[key.split(".")[-1] in INTEGERS or key.endswith(("length", "count", "_rank"))]
        value = BOOLEANS.get(key, value)
        path = write_gguf(tmp_path / "model.gguf", case, changes={key: value})
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                logits = specdec.load(path).logits(IDS[:12], source)
            names = [one.message.names for one in caught if isinstance(one.message, UnusedFieldWarning)]
        except SpecdecError:
            continue
        if names:
            assert names == [(f"{case.architecture}.{key}",)]
        elif np.array_equal(logits, plain):
            silent.add(key)
    assert silent <= NO_EFFECT | SAME.get(name, set()), silent - NO_EFFECT


# Keys whose value below is that of the model, or that the other kind of norm would have.
SAME = {
    "gptneox": {"attention.layer_norm_rms_epsilon", "use_parallel_residual"},
    "falcon": {"attention.layer_norm_rms_epsilon", "use_parallel_residual"},
    "command-r": {"attention.layer_norm_rms_epsilon", "use_parallel_residual"},
    "olmoe": {"expert_weights_norm"},
    "t5": {"context_length"},  # relative positions have no end
}
INTEGERS = {"sliding_window", "sliding_window_pattern", "vocab_size", "pooling_type"}
BOOLEANS = {
    "attention.causal": False, "use_parallel_residual": True, "expert_weights_norm": False, "swin_norm": True,
    "rope.scaling.finetuned": True, "expert_gating_func": 2,
    "rope.scaling.type": "yarn", "tensor_data_layout": "any",
}  # fmt: skip


NEUTRAL = {
    "attention.causal": True, "attention.scale": 8**-0.5, "attention.clamp_kqv": 0.0,
    "attention.sliding_window": 4096, "attn_logit_softcapping": 0.0, "logit_scale": 1.0,
    "expert_count": 0, "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.attn_factor": 1.0,
    "rope.scaling.finetuned": False, "pooling_type": 0, "residual_scale": 0.0, "vocab_size": 17,
}  # fmt: skip


def test_neutral_keys(tmp_path: Path) -> None:
    plain = specdec.load(write_gguf(tmp_path / "plain.gguf", LLAMA)).logits(IDS)
    model = specdec.load(write_gguf(tmp_path / "model.gguf", LLAMA, changes=NEUTRAL))
    assert np.array_equal(model.logits(IDS), plain)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "bloom", "falcon"])
def test_an_encoder_is_refused(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES[name], changes={"attention.causal": False})
    with pytest.raises(UnsupportedModelError, match=r"\.attention\.causal' is false"):
        specdec.load(path)


def test_tensors_of_factors_that_nothing_reads(tmp_path: Path) -> None:
    factors = np.ones(4, np.float32)
    for name, case in (("rope_factors_long.weight", LLAMA), ("rope_freqs.weight", CASES["gpt2"])):
        path = write_gguf(tmp_path / "model.gguf", case, more={name: factors})
        with pytest.raises(UnsupportedModelError, match=name):
            specdec.load(path)


def of_adapter(folder: Path, config: dict[str, Any]) -> list[str]:
    """Return the warned fields of an adapter's configuration."""
    model = specdec.load(write(folder / "model", "LlamaForCausalLM"))
    tensors = low_rank_tensors(llama_shapes(CONFIGS["LlamaForCausalLM"]), {}, 1)
    adapter = write_adapter(folder / "adapter", config, tensors)
    return warned(lambda: model.with_adapter(adapter))


def test_an_unknown_field_of_an_adapter(tmp_path: Path) -> None:
    assert of_adapter(tmp_path, adapter_config(invented=1)) == ["invented"]


@pytest.mark.oracle
def test_fields_of_peft_are_known(tmp_path: Path) -> None:
    defaults = json.loads(json.dumps(peft.LoraConfig(r=4).to_dict(), default=list))
    assert of_adapter(tmp_path, defaults | {"peft_type": "LORA"}) == []
