"""Small valid files of every type that the package reads, written by other libraries, and their uses."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import specdec
from specdec import drafts
from specdec.analysis.bench import bench_rows
from specdec.analysis.questions import Answer, AnswerFile, Reply
from specdec.trace import Step
from worlds import adapters, folders, gptq, learned
from worlds.assistants import PAIRS, assisted, write_assistant
from worlds.described import make_model
from worlds.eagles import eagle3, mtp_folder
from worlds.families import CONFIGS, random_weights
from worlds.folders import gpt2_tensors, llama_tensors, safetensors_bytes

Files = dict[str, bytes]
"""The files of a folder, by name."""

D, FF, LAYERS, HEADS, N_CTX = 16, 24, 2, 2, 32

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": FF,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1, "hidden_act": "silu",
    "max_position_embeddings": N_CTX, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
_GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6, "do_sample": True}
_LETTERS = [*"abcdefghij", "ab", "abc", "ba"]


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _written(write: Callable[[Path], Any]) -> Files:
    """Return the files that a function writes to a folder."""
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
        return {path.name: path.read_bytes() for path in sorted(Path(made).iterdir())}


def _tokenizer(*, metaspace: bool = False) -> Tokenizer:
    """Make a BPE tokenizer of a few merges: on bytes, or on text with a mark for spaces and byte tokens."""
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    vocab = {text: i for i, text in enumerate([*special, "▁" if metaspace else "Ġ", *_LETTERS])}
    merges = [("a", "b"), ("ab", "c"), ("b", "a")]
    if metaspace:
        vocab |= {"<0x0A>": len(vocab), "<0xC3>": len(vocab) + 1}
        found = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        found.normalizer = normalizers.Sequence(marks)
        steps = [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
        ]  # fmt: skip
        found.decoder = decoders.Sequence(steps)
    else:
        found = Tokenizer(models.BPE(vocab, merges))
        found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        found.decoder = decoders.ByteLevel()
    found.add_special_tokens(special)
    found.post_processor = processors.TemplateProcessing("<s> $A", "$A $B:1", [("<s>", 1)])
    return found


def _sentencepiece() -> bytes:
    """Train a BPE model on a few letters."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab abc ba j i h g f e d c"] * 9), model_writer=made, vocab_size=18,
        model_type="bpe", hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    return made.getvalue()


def _llama() -> Files:
    tokenizer = _tokenizer()
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = _CONFIG | {"vocab_size": tokenizer.get_vocab_size(), "rope_scaling": rope}
    templates = [
        {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    texts = {"add_bos_token": True, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    return {
        "config.json": _json(config), "generation_config.json": _json(_GENERATION),
        "model.safetensors": safetensors_bytes(llama_tensors(config)),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": _json(texts | {"chat_template": templates}),
        "chat_template.jinja": _TEMPLATE,
    }  # fmt: skip


_TEMPLATE = b"""{{- bos_token }}
{%- set ns = namespace(n=0) %}
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('who is ' + message.role) }}
    {%- endif %}
    {%- set ns.n = ns.n + 1 %}
    {{- message.content | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ab' }}{% endif %}
"""


def _metaspace() -> Files:
    tokenizer = _tokenizer(metaspace=True)
    n = tokenizer.get_vocab_size()
    flags = {"lstrip": True, "rstrip": False, "normalized": True, "single_word": True, "special": False}
    added = {str(n): {"content": "<x>"} | flags, str(n + 1): {"content": "<y>", "special": True}}
    settings = {"added_tokens_decoder": added, "eos_token": "<y>", "extra_special_tokens": {"x_token": "<x>"}}
    config = _CONFIG | {"vocab_size": n + 2}
    return {
        "config.json": _json(config), "model.safetensors": safetensors_bytes(llama_tensors(config)),
        "tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": _json(settings),
    }  # fmt: skip


def _shards() -> Files:
    pieces = _sentencepiece()
    n_pieces = sentencepiece.SentencePieceProcessor(model_proto=pieces).get_piece_size()
    config = _CONFIG | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": n_pieces + 2,
        "sliding_window": 8, "head_dim": D // HEADS,
    }  # fmt: skip
    named = {"eos_token": {"content": "<y>", "lstrip": False}, "additional_special_tokens": ["<x>"]}
    return _written(lambda folder: folders.write_hf(folder, config, n_shards=2)) | {
        "tokenizer.model": pieces,
        "tokenizer_config.json": _json({"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        "added_tokens.json": _json({"<x>": n_pieces, "<y>": n_pieces + 1}),
        "special_tokens_map.json": _json(named),
    }


def _codes() -> Files:
    """Make matrices of 4-bit and 8-bit codes, packed and not, in groups of 32 and 64 inputs."""
    d, rng = 64, np.random.default_rng(6)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    schemes = {
        f"group_{i}": {"targets": ["Linear"], "weights": weights, "format": packing}
        for i, packing in enumerate(("pack-quantized", "int-quantized"))
    }
    quantized = {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": schemes,
        "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
    config = _CONFIG | {
        "vocab_size": 4 + len(_LETTERS), "hidden_size": d, "intermediate_size": d, "num_hidden_layers": 1,
        "tie_word_embeddings": True, "quantization_config": quantized,
    }  # fmt: skip
    tensors: dict[str, np.ndarray] = dict(llama_tensors(config))
    for i, base in enumerate([name for name in tensors if "_proj." in name]):
        n_out, bits = len(tensors.pop(base)), (4, 8)[i % 2]
        if i == 3:
            tensors[base] = rng.integers(-127, 128, (n_out, d)).astype("|i1")
        else:
            words = rng.integers(-(2**31), 2**31, (n_out, d * bits // 32))
            tensors[f"{base}_packed"] = words.astype("<i4")
            tensors[f"{base}_shape"] = np.array([n_out, d], "<i8")
        tensors[f"{base}_scale"] = rng.uniform(0.001, 0.002, (n_out, (1, 2)[i % 3 > 0])).astype("<f2")
    return {"config.json": _json(config), "model.safetensors": safetensors_bytes(tensors)}


def _gptq(layout: str) -> Files:
    config, tensors, _ = gptq.quantized(gptq.LAYOUTS[layout])
    return {"config.json": _json(config), "model.safetensors": safetensors_bytes(tensors)}


def _gpt2() -> Files:
    vocab = {text: i for i, text in enumerate(["Ġ", *_LETTERS, "<|endoftext|>"])}
    sizes = {"n_embd": D, "n_positions": N_CTX, "n_layer": LAYERS, "n_head": HEADS}
    ends = {"bos_token_id": len(vocab) - 1, "eos_token_id": len(vocab) - 1}
    config = folders.gpt2_config(vocab_size=len(vocab), **sizes, **ends)
    tensors = {name.removeprefix("transformer."): array for name, array in gpt2_tensors(config).items()}
    return {
        "config.json": _json(config), "model.safetensors": safetensors_bytes(tensors),
        "generation_config.json": _json({"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0}),
        "vocab.json": _json(vocab), "merges.txt": b"#version: 0.2\na b\nab c\nb a\n",
    }  # fmt: skip


def _llama2c() -> Files:
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b" ", *(text.encode() for text in _LETTERS)]
    scored = [(token, -float(i)) for i, token in enumerate(tokens)]

    def write(folder: Path) -> None:
        folders.write_llama2c(folder / "model.bin", (D, FF, LAYERS, HEADS, 1, len(tokens), N_CTX))
        folders.write_llama2c_tokenizer(folder / "tok.bin", scored)

    return _written(write)


_NGRAM: Final = partial(drafts.Ngram, [0, 1, 2, 0, 1, 0], 4, 3)
_CHAIN: Final = drafts.StaticTree((1, 1))
_SAVED: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "ngram": (_NGRAM, partial(drafts.Ngram.load, mmap=False)),
    "ngram_mapped": (_NGRAM, partial(drafts.Ngram.load, mmap=True)),
    "suffixes": (lambda: drafts.SuffixDecoding(max_tokens=50, max_depth=8), drafts.SuffixDecoding.load),
    "recycled": (
        lambda: drafts.TokenRecycling(2, tree=_CHAIN),
        partial(drafts.TokenRecycling.load, tree=_CHAIN),
    ),
    "learning": (
        lambda: drafts.OnlineDraft(_NGRAM(), interval=None),
        lambda file: drafts.OnlineDraft.load(file, _NGRAM(), interval=None),
    ),
}
"""Drafts that are saved to a file: constructor and reader."""


def _saved(kind: str) -> Files:
    """Save a draft that has learned a text."""

    def write(folder: Path) -> None:
        draft = _SAVED[kind][0]()
        _decode(_target(4), draft)
        draft.save(folder / "draft.safetensors")

    return _written(write)


_PROMPT: Final = [0, 1, 2, 3, 1] * 8


def _begin_with_prompt(folder: Path) -> list[int]:
    """Generate with a prompt cache on disk."""
    cache = specdec.PromptCache(path=folder)
    found = specdec.generate(_target(4), None, _PROMPT, max_new_tokens=4, prompt_cache=cache, n_threads=1)
    cache.flush()
    return found.tokens


def _prompts() -> Files:
    with tempfile.TemporaryDirectory() as made:
        _begin_with_prompt(Path(made))
        (path,) = Path(made).glob("*/*.prompt")
        return {"text.prompt": path.read_bytes()}


def _use_prompts(folder: Path) -> None:
    """Put the file in the place of a valid one: the text must not change."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _begin_with_prompt(Path(made))
        (path,) = Path(made).glob("*/*.prompt")
        path.unlink()
        if (folder / "text.prompt").exists():
            shutil.copy(folder / "text.prompt", path)
        assert _begin_with_prompt(Path(made)) == wanted


def _skips() -> Files:
    trial = {
        "attn": [1], "mlp": [0, 1], "gamma": 4, "speedup": 1.2, "tokens_per_s": 120.0,
        "plain_tokens_per_s": 100.0, "acceptance_rate": 0.7, "tokens_per_call": 2.5,
    }  # fmt: skip
    settings = {
        "n_layer": 2, "prompts": [[1, 2, 3]], "gammas": [4], "max_new_tokens": 8, "temperature": 0.0,
        "top_k": None, "top_p": None, "min_p": None, "seed": 1,
    }  # fmt: skip
    other = trial | {"attn": [], "speedup": 0.9, "acceptance_rate": None}
    search = {"specdec_skip_search": 1, "target": "tiny", "settings": settings, "trials": [trial, other]}
    return {"skips.json": _json(search | {"finals": [trial]})}


_QUESTIONS = (specdec.Question(1, "c", ("a", "b")), specdec.Question("x", "d", ("c",), "s"))


def _questions() -> Files:
    """Write lines of prompt files, in each layout."""
    lines = [
        {"question_id": 1, "category": "c", "turns": ["a", "b"]}, {"task_id": "x", "prompt": "a"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}, "a",
    ]  # fmt: skip
    return {"questions.jsonl": b"".join(_json(line) + b"\n" for line in lines)}


def _answers() -> Files:
    """Write the answers of a benchmark; only fields that Spec-Bench lacks are the package's own."""
    step = Step(n_drafted=2, depth=2, n_accepted=1, n_emitted=2, betas=(0.5, 0.25))
    reply = Reply("ab", (1, 2, 3, 4), 3, "length", 0.5, 0.1, 0.25, (step, step))

    def write(folder: Path) -> None:
        file = AnswerFile(folder / "plain.jsonl", "plain")
        for question in _QUESTIONS:
            file.add(question, Answer((reply,) * len(question.turns)))

    return _written(write)


def _family(architecture: str, **changes: Any) -> Files:
    config = CONFIGS[architecture] | {"architectures": [architecture]} | changes
    return {
        "config.json": _json(config),
        "model.safetensors": safetensors_bytes(random_weights(architecture, config)),
    }


def _byt5() -> Files:
    """Write an encoder-decoder with a tokenizer and initial tokens."""
    added = {str(259 + i): {"content": f"<extra_id_{i}>", "special": True} for i in range(3)}
    begin = {"decoder_start_token_id": 0, "forced_bos_token_id": 5, "eos_token_id": 1, "bad_words_ids": [[0]]}
    return _family("T5ForConditionalGeneration", vocab_size=262) | {
        "tokenizer_config.json": _json({"tokenizer_class": "ByT5Tokenizer", "added_tokens_decoder": added}),
        "generation_config.json": _json(begin),
    }


def _eagle() -> Files:
    """Write an EAGLE-3 draft with two hidden states and few tokens, for a target of `_llama`'s sizes."""
    sizes = {"intermediate_size": FF, "num_attention_heads": HEADS, "num_key_value_heads": 1}
    draft = eagle3(_target(19, d_model=D), "specforge", 3, n_draft=11, captures=(1, 2), **sizes)
    return _written(draft.write)


def _mtp() -> Files:
    """Write a model with an MTP block."""
    return _written(mtp_folder)


def _assistant() -> Files:
    """Write an assistant with centroids."""
    return _written(lambda folder: write_assistant(folder, PAIRS["centroids"][1]))


def _adapter(kind: str) -> Files:
    """Write a LoRA adapter of `_metaspace`'s model: plain, "adapter_merged" (with head) or "adapter_dora"."""
    rng = np.random.default_rng(7)
    n_vocab = _tokenizer(metaspace=True).get_vocab_size() + 2  # added tokens
    ranks = {"0.self_attn.q_proj": 3, "1.self_attn.v_proj": 3, "0.mlp.up_proj": 2, "1.mlp.down_proj": 5}
    shapes = {name: shape for name, shape in adapters.llama_shapes(_CONFIG).items() if name[13:] in ranks}
    tensors: dict[str, np.ndarray] = dict(
        adapters.low_rank_tensors(shapes, {name: ranks[name[13:]] for name in shapes}, 7)
    )
    if kind == "adapter_dora":
        for name, (n_out, _) in shapes.items():
            tensors[f"base_model.model.{name}.lora_magnitude_vector"] = _array(rng, n_out)
    if kind == "adapter_merged":
        table = "base_model.model.model.embed_tokens.lora_embedding_"
        tensors |= {f"{table}A": _array(rng, 3, n_vocab), f"{table}B": _array(rng, D, 3)}
        tensors["base_model.model.lm_head.weight"] = _array(rng, n_vocab, D)
    config = adapters.adapter_config(
        base_model_name_or_path="base", r=3, lora_alpha=6, use_rslora=True, use_dora=kind == "adapter_dora",
        rank_pattern={"mlp.up_proj": 2, r".*\.1\.mlp\.down_proj": 5}, alpha_pattern={"q_proj": 4.5},
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], layers_to_transform=None,
        modules_to_save=["lm_head"] if kind == "adapter_merged" else None, inference_mode=True,
        loftq_config={},
    )  # fmt: skip
    return {"adapter_config.json": _json(config), "adapter_model.safetensors": safetensors_bytes(tensors)}


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0.0, 0.3, shape).astype("<f4")


def _learned(method: str) -> Files:
    """Write a learned draft for the target that `use` takes; only its description is the package's own."""
    return _written(lambda folder: _LEARNED[method](_target(4)).save(folder, "f32"))


_LEARNED: dict[str, Callable[[specdec.Model], Any]] = {
    "look_ahead_embeddings": lambda target: learned.look_ahead_weights(target, 2, 3),
    "recurrent": lambda target: learned.recurrent_weights(target, [], (2, 3, 1), [0, 2, 3], 1),
    "heads": lambda target: learned.random_heads(
        target, n_heads=2, n_blocks=1, see_draft_tokens=True, tokens=[0, 3, 2], seed=2
    ),
}


def _converted(file: str, to: str, size: int) -> Files:
    """Write a file with the package from a folder of random weights."""
    config = _CONFIG | {"num_hidden_layers": 1, "hidden_size": size, "intermediate_size": size}
    config["vocab_size"] = 4 + len(_LETTERS) + 1
    with tempfile.TemporaryDirectory() as made:
        folder = folders.write_hf(Path(made) / "folder", config)
        _tokenizer().save(str(folder / "tokenizer.json"))
        return {file: specdec.convert(folder, Path(made) / file, to, progress=False).read_bytes()}


_CONVERTED = {
    "gguf": ("model.gguf", "Q8_0", 32), "gguf_mixture": ("model.gguf", "Q4_K_M", 256),
    "packed": ("model.specdec", "int8", 32),
}  # fmt: skip


def _use_answers(folder: Path) -> None:
    file = AnswerFile(folder / "plain.jsonl", "plain")
    there = [(question, found) for question in _QUESTIONS if (found := file.find(question)) is not None]
    if there:
        questions, answers = zip(*there, strict=True)
        bench_rows(questions, [answers], [answers], sampled=True)


def _use_skips(folder: Path) -> None:
    search = specdec.SkipSearch.load(folder / "skips.json")
    str(search), search.table(), search.to_dict()
    _decode(_target(4), search.draft)


def _use_eagle(folder: Path) -> None:
    target = _target(19, d_model=D)
    draft = drafts.Eagle(folder, target, tree=drafts.DynamicTree(4), n_threads=1)
    repr(draft)
    _decode(target, draft)


def _use_mtp(folder: Path) -> None:
    target = specdec.load(folder, tokenizer=False, n_threads=1)
    _decode(target, drafts.MTP(target, n_threads=1))


def _use_assistant(folder: Path) -> None:
    target, _ = assisted()
    draft = drafts.Assistant(target, folder, n_threads=1)
    repr(draft)
    _decode(target, draft)


def _use_adapter(kind: str, folder: Path) -> None:
    """Merge it into a valid base and, if its type allows, use it unmerged."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        for name, data in files_of("metaspace").items():
            (Path(base) / name).write_bytes(data)
        _decode(specdec.load(base, adapter=folder, n_threads=1), None)
        if kind == "adapter":
            model = specdec.load(base, n_threads=1)
            _decode(model, drafts.PromptLookup(), adapter=model.with_adapter(folder, n_threads=1))


def _target(n_vocab: int, **changes: int) -> specdec.Model:
    return make_model({"n_vocab": n_vocab, **changes})


def _use_llama2c(folder: Path) -> None:
    """Use it directly and as a GGUF file, which must load as the same model."""
    tokens, ids = folder / "tok.bin", [1, 0, 1]
    model = specdec.load(folder / "model.bin", tokenizer=tokens, n_threads=1)
    _use_model(model)
    made = specdec.convert(model.path, folder / "made.gguf", "F32", tokenizer=tokens, progress=False)
    again = specdec.load(made, n_threads=1).logits(ids, n_threads=1)
    assert np.array_equal(again, model.logits(ids, n_threads=1))


def _use_model(model: specdec.Model) -> None:
    repr(model)
    tokenizer, options = model.tokenizer, {"max_new_tokens": 4, "n_threads": 1}
    if tokenizer is not None:
        tokenizer.decode(tokenizer.encode("ab cab\n<x>é <y>"))
    if (encoder := model.config.encoder) is not None:
        source = [token % encoder.n_vocab for token in (0, 1, 2)][: encoder.n_ctx]
        begun = None if model.decoder_start else [0]
        str(specdec.generate(model, None, source, decoder_prompt=begun, **options))
        if tokenizer is not None:
            str(specdec.generate(model, None, "ab c", decoder_prompt="a", **options))
        return
    _decode(model, None)
    if tokenizer is not None:
        specdec.generate(model, None, "ab a", **options)
        if model.chat_template is not None:
            specdec.generate(model, None, messages=[{"role": "user", "content": "ab a"}], **options)


def _decode(target: specdec.Model, draft: Any, **options: Any) -> None:
    prompt = [token % target.config["n_vocab"] for token in (0, 1)]
    str(specdec.generate(target, draft, prompt, max_new_tokens=4, n_threads=1, **options))


_Kind = tuple[Callable[[], Files], Callable[[Path], Any]]
_MODELS: dict[str, Callable[[], Files]] = {
    "llama": _llama, "metaspace": _metaspace, "shards": _shards, "codes": _codes, "gpt2": _gpt2,
    "byt5": _byt5, "gptq": partial(_gptq, "gptq"), "awq": partial(_gptq, "awq"),
    **{architecture: partial(_family, architecture) for architecture in CONFIGS},
}  # fmt: skip
_KINDS: dict[str, _Kind] = {
    "llama2c": (_llama2c, _use_llama2c), "skips": (_skips, _use_skips), "answers": (_answers, _use_answers),
    "prompts": (_prompts, _use_prompts),
    "questions": (_questions, lambda folder: specdec.read_questions(folder / "questions.jsonl")),
    "eagle": (_eagle, _use_eagle), "mtp": (_mtp, _use_mtp), "assistant": (_assistant, _use_assistant),
    **{kind: (write, lambda folder: _use_model(specdec.load(folder, n_threads=1)))
       for kind, write in _MODELS.items()},
    **{kind: (partial(_converted, *how),
              lambda folder, file=how[0]: _use_model(specdec.load(folder / file, n_threads=1)))
       for kind, how in _CONVERTED.items()},
    **{kind: (partial(_adapter, kind), partial(_use_adapter, kind))
       for kind in ("adapter", "adapter_merged", "adapter_dora")},
    **{kind: (partial(_saved, kind),
              lambda folder, load=load: _decode(_target(4), load(folder / "draft.safetensors")))
       for kind, (_, load) in _SAVED.items()},
    **{method: (partial(_learned, method),
                lambda folder: _decode(_target(4), drafts.load(folder, _target(4))))
       for method in _LEARNED},
}  # fmt: skip
"""Writer of the valid files of a type, and their use."""
FILE_FORMATS = tuple(_KINDS)


@functools.cache
def files_of(kind: str) -> Files:
    """Return the valid files of a type."""
    return _KINDS[kind][0]()


def use(kind: str, folder: Path) -> None:
    """Load a folder, and decode a few tokens with it."""
    _KINDS[kind][1](folder)
