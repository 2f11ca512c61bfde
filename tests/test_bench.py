"""Benchmarks by category: token counts at the end of a text, statistics by definition, files, interrupts."""

from __future__ import annotations

import json
import math
import pkgutil
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

import specdec
from chat_templates import make_chat
from specdec import Bench, Question
from specdec.errors import InputError
from toy_pair import ToyTokenizer, greedy_tokens, write_pair
from worlds.encoder_decoders import EncoderDecoder

Pair = tuple[specdec.Model, specdec.Model]
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
QUESTIONS = [
    Question(7, "letters", ("ab ab", "ba")),
    Question("x", "words", ("ab a b",)),
    Question(9, "letters", ("bb",)),
]
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "gamma": 3, "repeats": 2, "n_threads": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair whose continuations are known and used as questions."""
    paths = write_pair(tmp_path_factory.mktemp("pair"), amount=0.2)
    target, draft = (specdec.load(path, tokenizer=EveryByte()) for path in paths)
    return target, draft


class EveryByte(ToyTokenizer):
    """The toy tokenizer; a byte without a token becomes an "a"."""

    def _encode(self, text: str) -> list[int]:
        return [token for char in text for token in self._of(char)]

    def _of(self, char: str) -> list[int]:
        return super()._encode(char if char in " \nab" or "c" <= char <= "z" else "a")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


@pytest.fixture(scope="module")
def found(pair: Pair, folder: Path) -> Bench:
    return specdec.bench(pair[0], {"small one": pair[1]}, QUESTIONS, answers=folder, **OPTIONS)


class Knowing:
    """A draft that proposes a given text, whatever comes."""

    def __init__(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        self.text = [*prompt, *tokens]

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> list[int]:
        return self.text[len(tokens) : len(tokens) + budget]


class EndsBy(ToyTokenizer):
    """The toy tokenizer with another end of text."""

    def __init__(self, eos: int) -> None:
        super().__init__()
        self.eos_ids = (eos,)


def test_a_text_that_ends_within_a_block_of_accepted_drafts(tmp_path: Path) -> None:
    """The draft continues past the end with the target's tokens; only tokens in the result count."""
    path, _ = write_pair(tmp_path)
    prompt = specdec.load(path, tokenizer=ToyTokenizer()).check_ids("ab ab").tolist()
    tokens = greedy_tokens(specdec.load(path, tokenizer=False), prompt, 20)
    first = {token: index for index, token in reversed(list(enumerate(tokens)))}
    index = max(index for index in first.values() if index < 7)  # within the second round of five tokens
    target = specdec.load(path, tokenizer=EndsBy(tokens[index]))
    found = specdec.bench(target, Knowing(prompt, tokens), ["ab ab"], gamma=4, repeats=1, n_threads=1)
    n, n_rounds = index + 1, index // 5 + 1
    assert [len(answer.replies[0].tokens) for answer in found.answers[0]] == [n]
    assert found.answers[0][0].replies[0].finish_reason == "stop"
    row = found["prompts"]
    assert (row.n_tokens, row.mean_acceptance_length, row.tokens_per_call) == (n, n / n_rounds, n / n_rounds)
    assert row.draft_acceptance_rate == (4 * (n_rounds - 1) + min(4, n - 5 * (n_rounds - 1))) / (4 * n_rounds)
    assert row.alpha == 1.0 and row.n_equal == row.n_compared == 1


def test_answers_are_those_of_generate(pair: Pair, found: Bench) -> None:
    """Turns follow each other; without a chat template, after an empty line."""
    target, draft = pair
    assert len(found.answers) == len(found.plain_answers) == 2
    for question, answer in zip(found.questions, found.answers[1], strict=True):
        text = ""
        for said, reply in zip(question.turns, answer.replies, strict=True):
            text += said
            out = specdec.generate(target, draft, text, gamma=3, max_new_tokens=12)
            assert reply.tokens == tuple(out.tokens) and reply.text == out.text
            assert reply.n_prompt_tokens == len(out.prompt_ids)
            assert sum(step.n_emitted for step in reply.steps) == len(out.tokens)
            assert out.text is not None
            text += out.text + "\n\n"
    assert found["overall"].n_equal == found["overall"].n_compared == 8
    assert [row.category for row in found.rows] == ["letters", "words", "overall"]
    assert [(row.n_questions, row.n_turns) for row in found.rows] == [(2, 3), (1, 1), (3, 4)]


def test_figures_by_their_definitions(pair: Pair, found: Bench) -> None:
    """Of the runs' own traces, added up here."""
    rounds = []
    for question in QUESTIONS[:1] + QUESTIONS[2:]:
        text = ""
        for said in question.turns:
            out = specdec.generate(*pair, text + said, gamma=3, max_new_tokens=12)
            rounds += out.trace.rounds
            text += f"{said}{out.text}\n\n"
    drafted = [r for r in rounds if r.drafted]
    row = found["letters"]
    betas = [beta for r in rounds for beta in r.betas[: r.kept]]
    assert row.alpha == pytest.approx(statistics.mean(betas)) and row.alpha_low < row.alpha < row.alpha_high
    assert row.n_tokens == sum(r.kept for r in rounds)
    accepted = [min(r.n_accepted, r.kept) for r in drafted]
    assert row.mean_acceptance_length == pytest.approx(sum(r.kept for r in drafted) / len(drafted))
    assert row.draft_acceptance_rate == pytest.approx(sum(accepted) / sum(r.n_drafted for r in drafted))
    assert row.per_position_acceptance_rate == pytest.approx(
        [np.mean([n > i for n in accepted]) for i in range(3)]
    )
    assert row.tokens_per_call == pytest.approx(sum(r.kept for r in rounds) / len(rounds))


def lines_of(folder: Path, run: int, name: str) -> list[dict[str, Any]]:
    """Lines of a file of answers, each with its only choice."""
    lines = [json.loads(line) for line in (folder / f"run_{run}" / f"{name}.jsonl").read_text().splitlines()]
    for line in lines:
        (line["choice"],) = line["choices"]
    return lines


def test_speeds_by_their_definitions(found: Bench, folder: Path) -> None:
    """Totals from the files, as Spec-Bench's own script reads them."""
    row = found["overall"]
    for run in (1, 2):
        both = [lines_of(folder, run, name) for name in ("small-one", "plain")]
        for lines in both:
            assert [line["question_id"] for line in lines] == [7, "x", 9]
            assert [len(line["choice"]["turns"]) for line in lines] == [2, 1, 1]
        assert both[0][0]["model_id"] == "small one" and both[0][0]["category"] == "letters"
        for choice in (line["choice"] for line in both[0]):
            assert sum(choice["new_tokens"]) == sum(choice["accept_lengths"])
            assert sum(choice["decoding_steps"]) == len(choice["accept_lengths"])
        sums = [
            [(sum(one["choice"]["new_tokens"]), sum(one["choice"]["wall_time"])) for one in lines]
            for lines in both
        ]
        means = [statistics.mean(n / seconds for n, seconds in part) for part in sums]
        totals = [sum(n for n, _ in part) / sum(seconds for _, seconds in part) for part in sums]
        assert row.question_speedup.ratios[run - 1] == pytest.approx(means[0] / means[1])
        assert row.tokens_per_s[run - 1] == pytest.approx(totals[0])
        assert row.plain_tokens_per_s[run - 1] == pytest.approx(totals[1])
        assert row.speedup.ratios[run - 1] == pytest.approx(totals[0] / totals[1])
        assert row.speedup.tokens_per_call[run - 1] == row.tokens_per_call
        texts = [[line["choice"]["turns"] for line in lines] for lines in both]
        assert texts[0] == texts[1]


def test_tables_and_json(pair: Pair, found: Bench) -> None:
    text = str(found)
    assert "small one drafting for target, gamma 3, temperature 0; 8 of 8 answers equal" in text
    for head in ("letters", "overall", "speed-up (min to max)", "mean accepted length", "position"):
        assert head in text
    values = json.loads(json.dumps(found.to_dict()))
    assert values["rows"][0]["category"] == "letters" and values["settings"]["gamma"] == 3
    assert "answers" not in values and "<table>" in found._repr_html_()
    assert repr(found).startswith("<specdec.Bench: small one drafting for target, gamma 3, temperature 0; ")
    with pytest.raises(KeyError):
        found["no such category"]
    questions = [Question(1, "a\x1b[2J\nb", ("ab",))]  # control characters of a category are escaped
    odd = specdec.bench(pair[0], None, questions, max_new_tokens=1, repeats=1, n_threads=1)
    for text in (str(odd), odd.markdown()):
        assert r"a\x1b[2J\nb" in text and "\x1b" not in text


def test_an_impossible_speed_up_is_said_to_be_one(
    pair: Pair, found: Bench, folder: Path, tmp_path: Path
) -> None:
    """A plain run that another process delayed."""
    copytree(folder, tmp_path, dirs_exist_ok=True)
    for run in (1, 2):
        for name, seconds in (("small-one", 0.001), ("plain", 100.0)):
            lines = lines_of(folder, run, name)
            for line in lines:
                line["choices"][0]["wall_time"] = [seconds] * len(line.pop("choice")["wall_time"])
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / f"run_{run}" / f"{name}.jsonl").write_text(text)
    slow = specdec.bench(pair[0], {"small one": pair[1]}, QUESTIONS, answers=tmp_path, **OPTIONS)
    assert slow["overall"].speedup.invalid and " ! (" in str(slow)


def test_the_eight_categories_of_mt_bench_are_one_task_too(pair: Pair) -> None:
    questions = [Question(i, name, ("ab",)) for i, name in enumerate((*MT_BENCH, "rag"))]
    found = specdec.bench(pair[0], None, questions, max_new_tokens=2, repeats=1, n_threads=1)
    assert [row.category for row in found.rows] == [*MT_BENCH, "rag", "mt_bench", "overall"]
    assert (found["mt_bench"].n_questions, found["overall"].n_questions) == (8, 9)
    assert found.answers == () and found.draft == "plain"
    assert found["rag"].tokens_per_call == 1.0 and math.isnan(found["rag"].speedup.median)
    assert "target alone" in str(found) and "alpha" not in str(found)


def test_samples_differ_by_repetition_and_not_by_what_else_is_asked(pair: Pair) -> None:
    options = {**OPTIONS, "temperature": 1.0, "plain": False}
    whole = specdec.bench(*pair, QUESTIONS, **options)
    one = specdec.bench(*pair, QUESTIONS[1:2], seed=1, **{**options, "repeats": 1})
    alike = specdec.bench(*pair, ["ab", "ab"], **options)
    assert whole.answers[0][1].replies[0].tokens != whole.answers[1][1].replies[0].tokens
    assert whole.answers[1][1].replies[0].tokens == one.answers[0][0].replies[0].tokens
    assert alike.answers[0][0].replies[0].tokens != alike.answers[0][1].replies[0].tokens
    assert whole.plain_answers == () and math.isnan(whole["overall"].speedup.median)
    assert whole["overall"].n_compared == 0 and "speed-up" not in str(whole)
    coupled = specdec.bench(*pair, QUESTIONS, **{**OPTIONS, "temperature": 1.0, "verify": "coupled"})
    assert coupled["overall"].n_equal == coupled["overall"].n_compared == 8


def test_what_drafts(pair: Pair) -> None:
    """A memory learns only within its repetition; the caller's object does not change."""
    options = {**OPTIONS, "repeats": 1, "max_new_tokens": 2}
    assert "gamma auto" in str(specdec.bench(*pair, ["ab"], **{**options, "gamma": "auto"}))
    draft = specdec.drafts.PromptLookup()
    copying = specdec.bench(pair[0], draft, ["ab ab ab", "b"], **{**options, "gamma": None})
    assert copying.settings["gamma"] == draft.gamma
    assert copying.draft == "promptlookup" and copying["prompts"].n_equal == 2
    memory = specdec.drafts.SuffixDecoding()
    questions = [Question(i, "c", ("ab ab",)) for i in range(2)]
    found = specdec.bench(pair[0], memory, questions, max_new_tokens=30, repeats=2, n_threads=1)
    n_steps = [[len(answer.replies[0].steps) for answer in run] for run in found.answers]
    assert n_steps[0] == n_steps[1] and n_steps[0][1] < n_steps[0][0] and memory.n_tokens == 0


def test_conversations_go_through_the_chat_template(make_llama: Any) -> None:
    model = make_chat(make_llama, "qwen2.5", seed=3)
    questions = [Question(1, "c", ("Hi", "And?"), "Be brief.")]
    found = specdec.bench(model, model, questions, max_new_tokens=6, repeats=1, n_threads=1)
    first, second = found.answers[0][0].replies
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert first.n_prompt_tokens == len(model.chat_ids(messages))
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And?"}]
    assert second.n_prompt_tokens == len(model.chat_ids(messages))
    assert second.tokens == tuple(specdec.generate(model, None, messages=messages, max_new_tokens=6).tokens)
    text = specdec.bench(model, None, questions, max_new_tokens=2, repeats=1, chat=False, n_threads=1)
    assert text.plain_answers[0][0].replies[0].n_prompt_tokens == len(model.check_ids("Hi"))


def test_where_answers_end(pair: Pair, found: Bench) -> None:
    text = found.answers[0][1].replies[0].text
    stop = text[len(text) // 2 :][:2]
    options = {**OPTIONS, "repeats": 1}
    ended = specdec.bench(*pair, QUESTIONS[1:2], stop=iter([stop]), **options)
    reply = ended.answers[0][0].replies[0]
    out = specdec.generate(*pair, QUESTIONS[1].turns[0], gamma=3, max_new_tokens=12, stop=[stop])
    assert (reply.text, reply.tokens, reply.finish_reason) == (out.text, tuple(out.tokens), "stop")
    assert reply.text == text[: text.index(stop)] and ended["words"].n_equal == 1
    first = found.answers[0][1].replies[0].tokens[0]
    target = specdec.load(pair[0].path, tokenizer=EndsBy(first))
    for ignored, n in ((False, 1), (True, 12)):
        whole = specdec.bench(target, None, QUESTIONS[1:2], ignore_eos=ignored, max_new_tokens=12, repeats=1)
        assert whole["words"].n_tokens == n


def test_each_turn_is_a_source_of_an_encoder_decoder() -> None:
    models = EncoderDecoder(text=True)
    options: dict[str, Any] = {"max_new_tokens": 6, "n_threads": 1}
    questions = [Question(1, "c", ("abc", "xyz"))]
    found = specdec.bench(models.target, models.draft, questions, repeats=1, **options)
    for said, reply in zip(questions[0].turns, found.answers[0][0].replies, strict=True):
        out = specdec.generate(models.target, None, said, **options)
        assert out.source_ids is not None
        assert (reply.tokens, reply.n_prompt_tokens) == (tuple(out.tokens), len(out.source_ids))
    with pytest.raises(InputError, match="random is an encoder-decoder"):
        specdec.bench(models.target, None, ["a"], chat=True)


def of_replies(answers: Any, *names: str) -> list[Any]:
    """Attributes of every reply, by repetition, question and turn."""
    return [
        [[[getattr(reply, name) for name in names] for reply in one.replies] for one in run]
        for run in answers
    ]


def test_an_interrupted_benchmark_goes_on(
    pair: Pair, found: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise KeyboardInterrupt
        return specdec.generate(*args, **options)

    monkeypatch.setattr("specdec.analysis.bench.generate", interrupted)
    monkeypatch.setattr("specdec.analysis.bench._N_WARM_UPS", 0)
    stop_at = 8  # 8 turns a repetition in two ways: within the last question of the first
    options = {**OPTIONS, "answers": tmp_path}
    pair = pair[0], {"small one": pair[1]}
    with pytest.raises(KeyboardInterrupt):
        specdec.bench(*pair, QUESTIONS, **options)
    path = tmp_path / "run_1" / "plain.jsonl"
    assert len(path.read_text().splitlines()) == 3
    with open(path, "a") as file:
        file.write('{"question_id": 7, "cat')  # as of a program that was killed while it wrote
    calls, stop_at = 0, 0
    resumed = specdec.bench(*pair, QUESTIONS, **options)
    assert calls == 1 + 8
    for ours, theirs in ((resumed.answers, found.answers), (resumed.plain_answers, found.plain_answers)):
        assert of_replies(ours, "tokens", "steps") == of_replies(theirs, "tokens", "steps")
    calls = 0
    again = specdec.bench(*pair, QUESTIONS, **options)
    assert calls == 0
    assert again.answers == resumed.answers and again.rows == resumed.rows  # to the last digit of a time


@pytest.mark.parametrize("draft_type", ["SuffixDecoding", "TokenRecycling"])
def test_a_draft_that_learns_knows_the_answers_of_an_interrupted_repetition(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft_type: str
) -> None:
    """Its steps equal those of an uninterrupted benchmark, wherever it was interrupted."""
    questions = [Question(i, "c", ("ab ab", "ab")) for i in range(3)]
    options: dict[str, Any] = {"max_new_tokens": 12, "repeats": 2, "n_threads": 1, "plain": False}
    monkeypatch.setattr("specdec.analysis.bench._N_WARM_UPS", 0)
    draft = getattr(specdec.drafts, draft_type)()
    whole = specdec.bench(pair[0], draft, questions, **options)
    for n_turns in (2, 5, 8):
        turns = iter(range(n_turns))

        def interrupted(*args: Any, turns: Iterator[int] = turns, **given: Any) -> Any:
            if next(turns, None) is None:
                raise KeyboardInterrupt
            return specdec.generate(*args, **given)

        folder = tmp_path / str(n_turns)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("specdec.analysis.bench.generate", interrupted)
            specdec.bench(pair[0], draft, questions, answers=folder, **options)
        there = lines_of(folder, 1, draft_type.lower())[0]["choice"]["wall_time"]
        found = specdec.bench(pair[0], draft, questions, answers=folder, **options)
        assert [reply.wall_s for reply in found.answers[0][0].replies] == there
        assert of_replies(found.answers, "steps") == of_replies(whole.answers, "steps")


def test_answers_with_other_settings_or_questions_are_refused(pair: Pair, found: Bench, folder: Path) -> None:
    options = {**OPTIONS, "answers": folder}
    pair = pair[0], {"small one": pair[1]}
    with pytest.raises(InputError, match=r"settings.json: gamma is 3; expected 2, as in this run"):
        specdec.bench(*pair, QUESTIONS, **{**options, "gamma": 2})
    with pytest.raises(InputError, match=r"run_1/plain.jsonl: has the answer to a different question 7"):
        specdec.bench(*pair, [Question(7, "letters", ("other",))], **options)
    fewer = specdec.bench(*pair, QUESTIONS[:1], **{**options, "repeats": 1})
    assert fewer.answers[0] == found.answers[0][:1]


DAMAGES: list[tuple[str, list[str | int], Any]] = [
    ("choices", ["choices"], []), ("choices", ["choices"], None),
    ("choices[0].turns", ["choices", 0, "turns"], [5]), ("specdec", ["specdec"], None),
    ("choices[0].wall_time[0]", ["choices", 0, "wall_time"], ["x"]), ("question_id", ["question_id"], True),
    ("specdec.replies", ["specdec", "replies"], []),
    ("specdec.replies[0].betas", ["specdec", "replies", 0, "n_drafted"], []),
    ("specdec.replies[0].tokens", ["specdec", "replies", 0, "tokens"], [1]),
    ("specdec.replies[0].prefill_s", ["specdec", "replies", 0, "prefill_s"], None),
]  # fmt: skip
"""Refused fields: the changed part of a line, and its new value."""


@pytest.mark.parametrize("field, keys, value", DAMAGES, ids=range(len(DAMAGES)))
def test_damaged_answers(
    pair: Pair, folder: Path, tmp_path: Path, found: Bench, field: str, keys: Any, value: Any
) -> None:
    copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run_1" / "plain.jsonl"
    lines = path.read_text().splitlines()
    whole = inner = json.loads(lines[1])
    for step in keys[:-1]:
        inner = inner[step]
    inner[keys[-1]] = value
    asked = pair[0], {"small one": pair[1]}, QUESTIONS
    for line, where in ((json.dumps(whole), f": {field}"), ("[]", ": values"), ("{", "")):
        path.write_text("\n".join([lines[0], line, lines[2]]) + "\n")
        with pytest.raises(InputError, match=re.escape(f"{path}, line 2{where}")):
            specdec.bench(*asked, answers=tmp_path, **OPTIONS)


def test_files_that_cannot_be_written(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because of another program, or a file in place of a folder."""
    path = tmp_path / "run_1" / "plain.jsonl"

    def disturbed(*args: Any, **options: Any) -> Any:
        with open(path, "a") as file:
            file.write("{}\n")
        return specdec.generate(*args, **options)

    monkeypatch.setattr("specdec.analysis.bench.generate", disturbed)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run_1").write_text("")
    for folder, message in ((tmp_path, "changed by another program"), (tmp_path / "other", "cannot be read")):
        with pytest.raises(InputError, match=message):
            specdec.bench(pair[0], None, QUESTIONS, answers=folder, **OPTIONS)


def test_questions_that_do_not_fit(pair: Pair) -> None:
    """The context has 96 tokens."""
    turns = ("a" * 200,), ("ab", "a" * 80), ("ab",)
    questions = [Question(i, "c", one) for i, one in enumerate(turns, 1)]
    options = {**OPTIONS, "repeats": 1}
    for asked, skip, message in (
        (questions, {}, r"1 question cannot be used: 1: prompt: .*, or too_long='skip'"),
        (questions[1:], {}, r"question 2, turn 2: prompt: .* expected shorter turns"),
        (questions[:1], {"too_long": "skip"}, "cannot be used"),
    ):
        with pytest.raises(InputError, match=message):
            specdec.bench(*pair, asked, **options, **skip)
    found = specdec.bench(*pair, questions, too_long="skip", **options)
    assert [question.id for question in found.questions] == [2, 3]
    assert [question_id for question_id, _ in found.skipped] == [1, 2]
    assert found.skipped[1][1].startswith("turn 2: ")
    assert found["c"].n_turns == 2 and "2 questions skipped or incomplete" in str(found)


def test_a_question_that_is_cut_in_one_run_alone_is_named(pair: Pair, monkeypatch: Any) -> None:
    """In a later repetition of the draft, or of plain decoding."""
    by_name = "specdec.analysis.bench.Asker.answer"
    answer = pkgutil.resolve_name(by_name)

    def cut(self: Any, question: Question, draft: Any, seed: int, options: Any) -> Any:
        found = answer(self, question, draft, seed, options)
        where = {1: (True, 1), 2: (False, 1), 3: (True, 0)}.get(question.id)
        return replace(found, left_out="no room") if where == (draft is not None, seed) else found

    monkeypatch.setattr(by_name, cut)
    questions = [Question(i, "c", ("ab",)) for i in range(5)]
    found = specdec.bench(*pair, questions, **{**OPTIONS, "repeats": 2, "seed": 0})
    assert found.skipped == ((1, "no room"), (2, "no room"), (3, "no room"))


def test_questions_are_texts(pair: Pair) -> None:
    target = specdec.load(pair[0].path, tokenizer=False)
    with pytest.raises(InputError, match="has no tokenizer; expected one for questions"):
        specdec.bench(target, None, ["a"])


@pytest.mark.slow
def test_the_snippets_of_the_page_run() -> None:
    page = (Path(__file__).parents[1] / "docs" / "EVALUATION.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (snippet,) = [snippet for snippet in snippets if "specdec.bench(" in snippet]
    exec(snippet.replace("max_new_tokens=100", "max_new_tokens=10"), {})
