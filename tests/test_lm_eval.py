"""lm-evaluation-harness: every path gives the same score, which equals the harness's own model's.

Also as an unchanged client of the server.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import specdec
from chat_templates import SPECIAL_TOKENS as CHAT_TOKENS
from chat_templates import TEMPLATES, library_tokenizer, make_chat, said
from refusals import refuses
from scripted_models import write_scripted_model
from specdec import Engine
from specdec.errors import InputError
from specdec.serve import Server, Service
from trained import small_pair

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import harness

pytestmark = [
    pytest.mark.oracle,
    # Warnings that the harness and its packages issue about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N_NEW = 24
CONTEXT = "It was a dark and stormy night, and the rain fell upon the roof of the old house."
Factory = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def packages() -> Iterator[None]:
    """The harness, imported only when these tests run, without network access."""
    global SpecdecLM, Instance, CachingLM
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
            patch.setenv(name, "1")
        from lm_eval.api.instance import Instance
        from lm_eval.api.model import CachingLM

        from specdec.integrations.lm_eval import SpecdecLM

        yield


@pytest.fixture(scope="module")
def tasks(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tasks of a few documents; one document and one prompt exceed the context."""
    folder = tmp_path_factory.mktemp("tasks")
    n_docs = {"endings": 3, "articles": 1, "gsm8k_local": 2, "humaneval_local": 2}
    harness.write_tasks(folder, shared, n_docs, N_NEW, 3000)
    return folder


def asked(kind: str, *arguments: Any) -> list[Any]:
    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


# ── A score cannot move


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_every_way_gives_the_same_scores(dtype: Any, tasks: Path, tmp_path: Path) -> None:
    target, draft = small_pair(dtype, dtype)
    ways = harness.MODES if dtype == "f32" else ("plain", "speculative, batched, prompts cached")
    first: dict[str, harness.Evaluation] = {}
    for way in ways:
        lm = harness.specdec_lm(target, draft, harness.MODES[way], "auto" if dtype == "f32" else 3, 1)
        cached = CachingLM(lm, str(tmp_path / f"{way}.db"))
        for task in harness.TASKS:
            for model in (cached, cached) if way != "plain" else (lm,):  # the second time from the cache
                found = harness.evaluate(model, tasks, task)
                wanted = first.setdefault(task, found)
                assert (found.answers, found.scores) == (wanted.answers, wanted.scores), (way, task)
        cached.dbdict.close()
        by_task = {name: tally.n_texts for name, tally in lm.tally_by_task.items()}
        assert by_task == {"gsm8k_local": 2, "humaneval_local": 2}
        n_texts = lm.tally.n_texts
        assert n_texts == 4 and (lm.tally.n_accepted > 0) == ("speculative" in way)
    numbers = {name: value for one in first.values() for name, value in one.scores.items()}
    assert numbers["chrf,none"] > 0 and numbers["bits_per_byte,none"] > 0
    texts = list(harness._flat(first["gsm8k_local"].answers))
    assert len(set(texts)) == 2 and all(texts)


def test_the_harness_model_says_the_same(tasks: Path, tmp_path: Path) -> None:
    target, draft = small_pair("f32", "f32")
    ours = SpecdecLM(target, draft, gamma="auto", batch_size=4, n_threads=1)
    theirs = harness.hf_lm(harness.hf_folder(target, tmp_path / "checkpoint"), 1)
    for task in harness.TASKS:
        _, relative, n_other, n = harness.differences(
            harness.evaluate(ours, tasks, task), harness.evaluate(theirs, tasks, task)
        )
        assert n and n_other == 0, task
        # The other model adds up ln p in f32: how far its sums are off grows with their size, 200 nats here.
        assert relative < 1e-6, (task, relative)
    long = " ".join([CONTEXT] * 40)
    pairs = asked(
        "loglikelihood", (CONTEXT, " He"), (CONTEXT, " She"), (CONTEXT, " He was afraid."), ("", "The rain"),
        (CONTEXT + "  ", "He was afraid."), (CONTEXT, "\n"), (long, " He was not afraid."), (CONTEXT, " He"),
    )  # fmt: skip
    for one, two in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert one[0] == pytest.approx(two[0], abs=1e-4) and one[1] == two[1]
    texts = asked("loglikelihood_rolling", (CONTEXT,), (long,), ("",), ("One",))
    rolled = ours.loglikelihood_rolling(texts)
    assert rolled == pytest.approx(theirs.loglikelihood_rolling(texts), rel=1e-6, abs=2e-5)
    # Stop strings, a prompt that is cut, and several settings in one batch.
    settings = [
        {"until": ["the", "\n\n"], "max_gen_toks": 30},
        {"until": [], "max_gen_toks": 12, "do_sample": False},
        {"until": ",", "max_gen_toks": 30, "do_sample": False, "repetition_penalty": 1.3},
    ]
    requests = asked("generate_until", *((text, kwargs) for text in (CONTEXT, long) for kwargs in settings))
    written = ours.generate_until(requests)
    assert written == theirs.generate_until(requests) and "the" not in written[0]
    for name in ("eot_token_id", "prefix_token_id", "max_length", "max_gen_toks"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for text in (CONTEXT, "", " a", "a\n", ours.tokenizer.bos_token + "a"):
        for special in (None, True, False):
            assert ours.tok_encode(text, add_special_tokens=special) == theirs.tok_encode(
                text, add_special_tokens=special
            ), (text, special)


UNTIL = [
    ["Question:", "</s>", "<|im_end|>"],  # of gsm8k
    ["2<|im_end|>"],  # the special token is no text, so the 2 stays
    ["<|im_end|>\nQ", "never"], ["end"], ["2<|im"], [">\n"], ["\nQ", "4<|pad|>2"],  # within names
    ["42\n"],  # in the text, where the special tokens are left out
    ["more"], [],
]  # fmt: skip


@pytest.mark.parametrize("until", UNTIL, ids=str)
@pytest.mark.parametrize("think_end", [None, "Hm.", "token"])
def test_texts_end_where_those_of_the_harness_model_do(
    until: list[str], think_end: str | None, tmp_path: Path
) -> None:
    from lm_eval.models.huggingface import HFLM

    specials = ("<|endoftext|>", "<|im_end|>", "<|pad|>", "<|think|>")
    text = "Hm.<|think|> 4<|pad|>2<|im_end|>\nQ: more<|endoftext|>"
    folder = write_scripted_model(tmp_path / "model", "Hi", text, specials, "<|endoftext|>", 64)
    end: Any = 256 + specials.index("<|think|>") if think_end == "token" else think_end
    request = asked("generate_until", ("Hi", {"until": until, "max_gen_toks": 40}))
    theirs = HFLM(
        pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, think_end_token=end
    ).generate_until(request)
    assert SpecdecLM(folder, think_end_token=end).generate_until(request) == theirs
    if until and "im_end" in until[-1]:
        assert "more" not in theirs[0]


def test_an_encoder_decoder_against_the_harness_model(shared: Path, tmp_path: Path) -> None:
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32128, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data *= 3.0
    model.save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(shared / "data" / "tokenizers" / "t5-small.tokenizer.json"),
        eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
    ).save_pretrained(tmp_path)  # fmt: skip
    theirs = HFLM(pretrained=str(tmp_path), backend="seq2seq", dtype="float32", device="cpu", batch_size=2)
    ours = SpecdecLM(str(tmp_path), "input-copy", batch_size=2, n_threads=1)
    source = "translate English to German: The house is wonderful."
    pairs = asked("loglikelihood", (source, " Das Haus"), ("A cat ", "sat"), (source, " Die"), ("", "None"))
    for one, two in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert one[0] == pytest.approx(two[0], rel=1e-5) and one[1] == two[1]
    texts = asked("loglikelihood_rolling", (source,))
    assert ours.loglikelihood_rolling(texts) == pytest.approx(theirs.loglikelihood_rolling(texts), rel=1e-5)
    gen_kwargs = {"until": [], "max_gen_toks": 8, "do_sample": False}
    requests = asked("generate_until", (source, gen_kwargs), ("A cat", gen_kwargs))
    for mine, other in zip(ours.generate_until(requests), theirs.generate_until(requests), strict=True):
        assert mine and other.startswith(mine)  # the harness's model counts the source among the new tokens


def test_samples_depend_on_nothing_but_the_seed() -> None:
    target, draft = small_pair()
    gen_kwargs = {"until": [], "max_gen_toks": 16, "do_sample": True, "temperature": 0.9, "top_k": 0}
    requests = asked("generate_until", *((text, gen_kwargs) for text in (CONTEXT, "The", CONTEXT)))

    def samples(**options: Any) -> list[str]:
        found: list[str] = SpecdecLM(target, verify="coupled", n_threads=1, **options).generate_until(
            requests
        )
        return found

    plain = samples()
    assert plain[0] != plain[2]  # equal prompts, different keys
    assert (
        samples(draft=draft, gamma=3, batch_size=16) == samples(draft="prompt-lookup", batch_size=2) == plain
    )
    assert samples(seed=1) != plain


# ── Caches


def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "specdec.integrations.lm_eval.harness_model"
    monkeypatch.setattr(f"{model}._SCORED_TOGETHER", 2)
    target, draft = small_pair()
    pairs = asked("loglikelihood", *((CONTEXT[:n], " He") for n in (10, 20, 30, 40, 50)))
    texts = asked("generate_until", *((CONTEXT[:n], {"until": [], "max_gen_toks": 6}) for n in range(10, 22)))
    rolled = asked("loglikelihood_rolling", *((CONTEXT[:n],) for n in (10, 20, 30, 40, 50)))
    wanted = SpecdecLM(target, batch_size=2)
    done: list[int] = []

    def counted(function: Any, fails_after: int) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            requests = arguments[1 if function is score else 2]
            if len(done) >= fails_after:
                raise KeyboardInterrupt
            done.append(len(requests))
            return function(*arguments, **options)

        return call

    score, generate = specdec.Model.score, specdec.generate
    for kind, requests, n_calls, n_first in (
        ("loglikelihood", pairs, 2, 4),
        ("loglikelihood_rolling", rolled, 2, 4),
        ("generate_until", texts, 1, 8),
    ):
        for fails_after in (n_calls, 100):
            done.clear()
            with monkeypatch.context() as patch:
                patch.setattr(specdec.Model, "score", counted(score, fails_after))
                patch.setattr(f"{model}.generate", counted(generate, fails_after))
                cached = CachingLM(SpecdecLM(target, draft, batch_size=2), str(tmp_path / f"{kind}.db"))
                if fails_after == n_calls:
                    with pytest.raises(KeyboardInterrupt):
                        getattr(cached, kind)(requests)
                    assert sum(done) == n_first
                else:
                    assert getattr(cached, kind)(requests) == getattr(wanted, kind)(requests)
                    assert sum(done) == 2 * len(requests) - n_first  # the rest, then all of `wanted`
            cached.dbdict.close()


# ── Looking native


def test_results_say_what_speculation_did(tmp_path: Path) -> None:
    lm = SpecdecLM("embedded", "embedded", gamma=2, batch_size="auto:4", max_batch_size=8, device="cuda:0")
    assert lm.batch_size == "auto" and lm.device == "cpu" and (lm.rank, lm.world_size) == (0, 1)
    lm.generate_until(asked("generate_until", (CONTEXT, {"until": [], "max_gen_toks": 20})))
    info = lm.get_model_info()
    assert info["model_num_parameters"] == lm.pair.target.n_parameters and info["model_dtype"] == "int8"
    said_of = info["specdec"]
    assert (said_of["target"], said_of["draft"], said_of["gamma"]) == ("embedded", "embedded", 2)
    assert said_of["n_tokens"] == 20 and 1 < said_of["tokens_per_call"] == 20 / said_of["n_calls"]
    json.dumps(info)


@pytest.mark.parametrize("family", ["qwen2.5", "llama 3", "cohere"])
def test_chat_templates(family: str, make_llama: Factory) -> None:
    from transformers import PreTrainedTokenizerFast

    model = make_chat(make_llama, family)
    lm = SpecdecLM(model)
    templates, tokens, _ = TEMPLATES[family]
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=library_tokenizer(CHAT_TOKENS), chat_template=templates, **tokens
    )
    for add in (True, False):
        history = said("How are you?", *(() if add else ("Well, and",)))
        wanted = theirs.apply_chat_template(
            history, tokenize=False, add_generation_prompt=add, continue_final_message=not add
        )
        assert lm.apply_chat_template(history, add_generation_prompt=add) == wanted
        ids = theirs.encode(wanted, add_special_tokens=False)
        assert lm.tok_encode(wanted) == ids
        bos = lm.tokenizer.bos_token_id
        with_bos = SpecdecLM(model, add_bos_token=True).tok_encode(wanted)
        assert with_bos == (ids if bos in (None, ids[0]) else [bos, *ids])  # BOS is not there twice
    assert "/" not in lm.tokenizer_name
    several = isinstance(templates, dict)
    assert lm.chat_template(True) == (templates["default"] if several else templates)


def test_both_ways_of_registration() -> None:
    from lm_eval.api.registry import get_model

    assert get_model("specdec") is SpecdecLM
    (point,) = entry_points(group="lm_eval.models", name="specdec")
    assert point.load() is SpecdecLM


def test_the_command_line_gives_errors_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def evaluate() -> None:
        asked.append(sys.argv[1:])
        raise InputError("no such thing")

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", evaluate)
    monkeypatch.setattr(sys, "argv", ["lm-eval", "--tasks", "a"])
    with pytest.raises(SystemExit) as raised:
        runpy.run_module("specdec.integrations.lm_eval", run_name="__main__")
    assert raised.value.code == "specdec: error: no such thing" and asked == [["--tasks", "a"]]


def test_what_is_refused() -> None:
    for name, value in (("num_beams", 4), ("penalty_alpha", 0.5), ("max_gen_toks", 1024)):
        request = asked("generate_until", (CONTEXT, {"until": [], name: value}))
        with pytest.raises(InputError, match=name):
            SpecdecLM("embedded").generate_until(request)
    for name, value in (
        ("batch_size", "many"),
        ("batch_size", 0),
        ("max_length", 1025),
        ("dtype", "float64"),
    ):
        with refuses(name, value):
            SpecdecLM("embedded", **{name: value})
    for options in ({}, {"target": "embedded", "pretrained": "embedded"}):
        with pytest.raises(InputError, match="target and pretrained"):
            SpecdecLM(**options)
    with pytest.raises(InputError, match="embedded has no chat template"):
        SpecdecLM("embedded").apply_chat_template(said("Hello"))


def test_a_misspelt_argument_is_named() -> None:
    for make, given in (
        (SpecdecLM.create_from_arg_obj, {"target": "embedded", "gama": 3}),
        (SpecdecLM.create_from_arg_string, "target=embedded,gama=3"),
        (lambda given: SpecdecLM("embedded", **given), {"gama": 3}),
    ):
        with pytest.raises(InputError, match="no argument 'gama'"):
            make(given)
    lm = SpecdecLM.create_from_arg_string("target=embedded,gamma=3", {"batch_size": 2, "device": None})
    assert lm.batch_size == 2


# ── As a client of the server


@pytest.fixture(scope="module")
def url(chatting_pair: tuple[specdec.Model, specdec.Model]) -> Iterator[str]:
    with (
        Engine(*chatting_pair, n_slots=4, n_threads=1) as engine,
        Server(Service(engine, ["mine"], draft_name="small"), port=0) as server,
    ):
        yield server.url


@pytest.mark.parametrize("n_concurrent", [1, 4])
def test_completions(url: str, chatting_pair: tuple[specdec.Model, Any], n_concurrent: int) -> None:
    """Scores are those of `Model.score`, texts those of `generate`; the harness's ids have no BOS."""
    from lm_eval.api.registry import get_model

    target = chatting_pair[0]
    lm = get_model("local-completions")(
        base_url=f"{url}/v1/completions", model="mine", num_concurrent=n_concurrent, batch_size=2,
        max_retries=1, max_length=target.config.n_ctx,
    )  # fmt: skip
    assert lm.tokenizer_backend == "remote"

    def ids_of(text: str) -> list[int]:
        assert target.tokenizer is not None
        return target.tokenizer.encode(text, add_bos=False)

    texts = [(CONTEXT, " He"), (CONTEXT, " He was afraid."), ("", "The rain"), ("The", " rain")]
    pairs = [(ids_of(begin) or [0], ids_of(begin + rest)[len(ids_of(begin)) :]) for begin, rest in texts]
    wanted = target.score(pairs, n_threads=1)
    found = lm.loglikelihood(asked("loglikelihood", *texts))
    assert [one[1] for one in found] == [score.is_greedy for score in wanted]
    assert [one[0] for one in found] == pytest.approx([score.total for score in wanted], rel=1e-12)
    prompts, theirs = [CONTEXT, "The rain", "He"], {"until": [","], "max_gen_toks": 12, "do_sample": False}
    requests = asked("generate_until", *((text, {**theirs, "repetition_penalty": 1.3}) for text in prompts))
    how: Any = {"stop": [","], "max_new_tokens": 12, "repetition_penalty": 1.3}
    texts_of = [specdec.generate(target, None, ids_of(text), **how).text for text in prompts]
    assert lm.generate_until(requests) == texts_of
