"""Encoder-decoders: both encoders read the source, and everything else works as for other targets.

test_every_drafter.py tests every draft on an encoder-decoder too.
"""

from __future__ import annotations

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import PromptCache, drafts, reference
from specdec.commands.program import main
from specdec.errors import InputError, VocabularyMismatchError
from specdec.tokenizer import load_tokenizer
from toy_pair import EOS, ToyTokenizer
from worlds.encoder_decoders import CONFIGS, START, EncoderDecoder, decoder_only, lively_tensors, model_of

OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True, "logits": True}
LENGTHS = (1, 9, 40, 17, 2)


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request: pytest.FixtureRequest) -> EncoderDecoder:
    return EncoderDecoder(request.param)


@pytest.fixture(scope="module")
def t5() -> EncoderDecoder:
    return EncoderDecoder("t5")


@pytest.fixture(scope="module")
def texts() -> EncoderDecoder:
    """Encoder-decoder models with a tokenizer."""
    return EncoderDecoder("t5", text=True)


def logits_of(pair: EncoderDecoder, text: list[int], source: list[int]) -> np.ndarray:
    """Logits by the specification: [len(text), n_vocab]."""
    return reference.logits(pair.config, pair.tensors, text, source=source)


def generate(target: specdec.Model, draft: Any, sources: Any, **options: Any) -> Any:
    return specdec.generate(target, draft, sources, **(OPTIONS | options))


def assert_equal(one: Any, other: Any) -> None:
    """Compare two results, or two lists of them."""
    if isinstance(one, list):
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
        return
    assert (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason)
    assert (one.prompt_ids, one.source_ids) == (other.prompt_ids, other.source_ids)
    assert np.array_equal(one.logits, other.logits)


# -------------------------------------------------------------------------------------------- greedy text


def test_greedy_text_is_that_of_the_specification(pair: EncoderDecoder) -> None:
    """Token for token, unless the two best logits are too close for f32."""
    source = pair.sources(23)[0]
    text, found = list(START), generate(pair.target, pair.draft, pair.sources(23)[0])
    for token, row in zip(found.tokens, found.logits, strict=True):  # type: ignore[arg-type]
        wanted = logits_of(pair, text, source)[-1]
        assert np.allclose(row, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
        second, best = np.sort(wanted)[-2:]
        assert token == wanted.argmax() or best - second < 1e-4
        text.append(token)
    assert found.prompt_ids == list(START) and found.source_ids == source
    assert found.trace.prefill_s > 0.0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_is_its_single_runs(pair: EncoderDecoder, temperature: float) -> None:
    """Sources of unequal lengths, two of them equal; slots are taken by the next source; threads."""
    sources = [*pair.sources(*LENGTHS), pair.sources(*LENGTHS)[1]]
    how = {"temperature": temperature, "verify": "coupled"}
    plain = [generate(pair.target, None, one, seed=[(3, i)], **how) for i, one in enumerate(sources)]
    for size, n_threads, draft in itertools.product((2, 6), (1, 2), (None, pair.draft)):
        batch = generate(pair.target, draft, sources, seed=3, batch_size=size, n_threads=n_threads, **how)
        assert_equal(batch, plain)
    if temperature == 0.0:
        assert plain[1].tokens == plain[-1].tokens


def test_a_stream_is_the_text(texts: EncoderDecoder) -> None:
    for begun in (None, "ab"):
        options: dict[str, Any] = {"max_new_tokens": 25, "ignore_eos": True, "decoder_prompt": begun}
        whole = specdec.generate(texts.target, None, "a b", **options)
        with specdec.stream(texts.target, texts.draft, "a b", **options) as stream:
            assert "".join(stream) == whole.text
        assert (
            stream.result.source_ids
            == whole.source_ids
            == [*ToyTokenizer().encode("a b", add_bos=False), EOS]
        )
        assert whole.source_text == "a b"


# ------------------------------------------------------------------------------------------ decoder_prompt


def test_decoder_prompt_continues_a_text(pair: EncoderDecoder) -> None:
    """With the target's own tokens: one prompt for all sources, or one for each."""
    sources = pair.sources(*LENGTHS)
    whole = generate(pair.target, None, sources)
    for draft in (None, pair.draft, drafts.PromptLookup(min_match=1)):
        begun = [one.tokens[:i] for i, one in enumerate(whole)]  # the first is empty
        found = generate(pair.target, draft, sources, decoder_prompt=begun)
        for n, (got, one) in enumerate(zip(found, whole, strict=True)):
            assert got.prompt_ids == [*START, *one.tokens[:n]]
            assert got.tokens[: 20 - n] == one.tokens[n:]
            assert np.array_equal(got.logits[: 20 - n], one.logits[n:])
        same = generate(pair.target, draft, sources[:2], decoder_prompt=[7, 8])
        alone = generate(pair.target, None, sources[1], decoder_prompt=np.array([7, 8]))
        assert same[0].prompt_ids == [*START, 7, 8]
        assert_equal(same[1], alone)


def test_decoder_prompt_is_a_text(texts: EncoderDecoder) -> None:
    tokenizer = ToyTokenizer()
    source = tokenizer.encode("ab", add_bos=False)
    several = generate(texts.target, texts.draft, ["ab", source], decoder_prompt=["xa", "b"])
    assert [one.prompt_ids for one in several] == [
        [*START, *tokenizer.encode(text, add_bos=False)] for text in ("xa", "b")
    ]
    assert [one.source_ids for one in several] == [[*source, EOS], source]  # ids are taken as they are
    assert several[0].text == tokenizer.decode(several[0].tokens, continuing=True)


def test_containers_of_other_libraries(t5: EncoderDecoder) -> None:
    """A batch with its padding, and arrays of two dimensions."""
    rows = np.array([[5, 6, 7, 8], [9, 10, 0, 0]])
    batch = {"input_ids": rows, "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]])}
    found = generate(t5.target, t5.draft, batch, decoder_prompt=np.array([[3, 4], [4, 3]]))
    assert_equal(found, generate(t5.target, None, [[5, 6, 7, 8], [9, 10]], decoder_prompt=[[3, 4], [4, 3]]))
    assert_equal(generate(t5.target, None, rows[:1], decoder_prompt=[3, 4]), found[:1])


def test_a_space_starts_a_text_only_after_text(texts: EncoderDecoder) -> None:
    """As for other targets: the first space is the tokenizer's if nothing precedes it."""
    space = ToyTokenizer().encode(" ", add_bos=False)[0]
    how: dict[str, Any] = {"logit_bias": {space: 1000.0}, "max_new_tokens": 3}
    start, after = (generate(texts.target, None, "ab", decoder_prompt=begun, **how) for begun in (None, "a"))
    assert start.tokens == after.tokens == [space] * 3
    assert after.text == "   " and start.text == ToyTokenizer().decode([space] * 3)


def test_the_context_is_the_decoders(t5: EncoderDecoder) -> None:
    """A source may fill the encoder's context, whatever the decoder's context is."""
    n_ctx = t5.target.config.n_ctx
    source = t5.sources(t5.target.config.encoder.n_ctx)[0]  # type: ignore[union-attr]
    found = specdec.generate(t5.target, t5.draft, source, max_new_tokens=None, ignore_eos=True)
    assert found.finish_reason == "context" and len(found.tokens) == n_ctx - len(START)
    for n_left in (1, 4):
        begun = found.tokens[: n_ctx - len(START) - n_left]
        rest = specdec.generate(
            t5.target, t5.draft, source, decoder_prompt=begun, max_new_tokens=None, ignore_eos=True
        )
        assert rest.tokens == found.tokens[-n_left:] and rest.finish_reason == "context"


# ---------------------------------------------------------------------------------------- logits and scores


def test_logits_and_scores(pair: EncoderDecoder) -> None:
    source = pair.sources(12)[0]
    found = generate(pair.target, None, source)
    text = [*found.prompt_ids, *found.tokens]
    logits = pair.target.logits(text[:-1], source)
    assert np.array_equal(logits, found.logits)
    wanted = logits_of(pair, text[:-1], source)
    ln_p = wanted - np.log(np.exp(wanted).sum(axis=1, keepdims=True))
    scores = pair.target.score(text, source)
    assert scores == pytest.approx(ln_p[np.arange(len(found.tokens)), found.tokens], abs=1e-4)


def test_a_text_is_scored_after_the_start_ids(texts: EncoderDecoder) -> None:
    ids = ToyTokenizer().encode("abba", add_bos=False)
    source = [*ToyTokenizer().encode("a b", add_bos=False), EOS]
    assert np.array_equal(texts.target.score("abba", "a b"), texts.target.score([*START, *ids], source))
    assert len(texts.target.score("abba", "a b")) == len(ids)
    assert np.array_equal(texts.target.logits("abba", "a b"), texts.target.logits([*START, *ids], source))


# ----------------------------------------------------------------------------------------------- drafts


def test_a_source_in_another_vocabulary_is_not_copied() -> None:
    pair = EncoderDecoder("two vocabularies")
    source = pair.sources(12)[0]
    with refuses("source"):
        specdec.generate(pair.target, drafts.InputCopy(), source)
    plain = generate(pair.target, None, source)
    assert_equal(generate(pair.target, drafts.InputCopy([5, 6, 7]), source), plain)


def test_nested_drafts_and_other_options(texts: EncoderDecoder) -> None:
    """With and without an encoder, one for the other; gamma, a stop string and a stop id as for others."""
    source, small = "ab é a", decoder_only()
    whole = generate(texts.target, None, source, max_new_tokens=30)
    assert whole.text == ToyTokenizer().decode(whole.tokens)
    within = (drafts.ModelDraft(texts.draft, draft=small), drafts.ModelDraft(small, draft=texts.draft))
    for draft in (small, drafts.Ensemble(texts.draft, *within, adaptive=False), *within):
        found = generate(texts.target, draft, source, max_new_tokens=30)
        assert_equal(found, whole)
        assert found.trace.n_drafted > 0
    for gamma in ("auto", 0, 7, lambda rounds: len(rounds) % 4):
        assert_equal(generate(texts.target, texts.draft, source, max_new_tokens=30, gamma=gamma), whole)
    string, token = whole.text[7:9], whole.tokens[5]
    for draft in (None, texts.draft, within[0]):
        found = generate(texts.target, draft, source, max_new_tokens=30, stop=string)
        assert found.stop == string and found.text == whole.text[: whole.text.index(string)]
        found = generate(texts.target, draft, source, max_new_tokens=30, stop=token)
        assert found.tokens == whole.tokens[: whole.tokens.index(token) + 1]


def test_a_draft_too_small_for_a_source_drafts_nothing(t5: EncoderDecoder) -> None:
    encoder = t5.config["encoder"] | {"n_ctx": 10}
    draft = model_of(t5.config | {"encoder": encoder}, t5.tensors)
    sources = t5.sources(10, 11)
    with pytest.raises(InputError, match="prompt 1 has 11 tokens; expected at most 10, the draft's source"):
        specdec.measure(t5.target, draft, sources, gammas=[1], n_tokens=4, timing=False)
    plain, found = (specdec.beam_search(t5.target, one, sources[1], width=2) for one in (None, draft))
    assert found.beams == plain.beams


class FromSource:
    """Drafts the source from its start; notified again if a slot gets another prompt."""

    def __init__(self) -> None:
        self.sources: dict[int, list[int] | None] = {}
        self.notified: list[list[int] | None] = []

    def begin(self, sequence: int, prompt: memoryview, *, source: memoryview | None) -> None:
        assert list(prompt) == list(START) or source is None
        self.sources[sequence] = None if source is None else list(source)
        self.notified.append(self.sources[sequence])

    def propose(self, sequence: int, tokens: memoryview, budget: int) -> list[int]:
        return (self.sources[sequence] or [])[:budget]


def test_an_object_is_notified_of_the_source(t5: EncoderDecoder) -> None:
    sources = t5.sources(*LENGTHS)
    draft = FromSource()
    found = generate(t5.target, draft, sources, batch_size=2)
    assert sorted(map(len, draft.notified)) == sorted(LENGTHS)
    assert_equal(found, generate(t5.target, None, sources))
    assert [list(one.trace.rounds[0].drafted) for one in found] == [source[:4] for source in sources]
    specdec.generate(decoder_only(), draft, [5, 6], max_new_tokens=2)
    assert draft.notified[-1] is None

    class Early:
        def begin(self, source: Any, sequence: int) -> None: ...
        def propose(self, sequence: int, tokens: memoryview, budget: int) -> list[int]: ...

    with pytest.raises(InputError, match="begin of the draft Early has source as parameter 1"):
        specdec.generate(t5.target, Early(), [5])


# ------------------------------------------------------------------------------------------ prompt cache


@pytest.mark.parametrize("config", ["t5", "bart"])
def test_a_prompt_cache_knows_the_source(config: str) -> None:
    """The same text after another source is not the same text; a hit changes no bit."""
    pair = EncoderDecoder(config)
    one, other = pair.sources(9, 9)
    cache = PromptCache()
    for draft in (None, pair.draft, decoder_only()):
        for source, decoder_prompt in itertools.product((one, other, one), ([5, 6, 7, 8], [5, 6, 7, 9, 9])):
            wanted = generate(pair.target, None, source, decoder_prompt=decoder_prompt)
            found = generate(pair.target, draft, source, decoder_prompt=decoder_prompt, prompt_cache=cache)
            assert_equal(found, wanted)
    again = generate(pair.target, None, other, decoder_prompt=[5, 6, 7, 8, 1], prompt_cache=cache)
    assert again.n_cached_tokens == 5
    third = pair.sources(9, seed=8)[0]
    fresh = generate(pair.target, None, third, decoder_prompt=[5, 6, 7, 8], prompt_cache=cache)
    assert fresh.n_cached_tokens == 0


def test_a_source_that_the_prompt_cache_has_is_not_encoded(t5: EncoderDecoder) -> None:
    """Neither by the target nor by the draft; without common text there is nothing else to reuse."""
    source, cache = t5.sources(128)[0], PromptCache()

    def seconds(known: PromptCache | None) -> float:
        found = (generate(t5.target, t5.draft, source, prompt_cache=known, n_threads=1) for _ in range(8))
        return min(one.trace.prefill_s for one in found)

    assert seconds(cache) < 0.1 * seconds(None)
    assert len(cache) == 2


# ------------------------------------------------------------------------------------------- beam search


@pytest.mark.parametrize("width", [1, 3])
def test_beam_search(pair: EncoderDecoder, width: int) -> None:
    source = pair.sources(14)[0]
    options: dict[str, Any] = {"width": width, "max_new_tokens": 6, "ignore_eos": True}
    plain = specdec.beam_search(pair.target, None, source, **options)
    for draft, gamma in ((pair.draft, 1), (pair.draft, 3), (pair.target, 2), (decoder_only(), 2)):
        found = specdec.beam_search(pair.target, draft, source, gamma=gamma, **options)
        assert found.beams == plain.beams and found.source_ids == source


# ----------------------------------------------------------------------------------------------- analysis


@pytest.mark.usefixtures("quick_timing")
def test_what_is_measured(texts: EncoderDecoder) -> None:
    """Acceptance is that of both models' distributions after the source."""
    source = ToyTokenizer().encode("a bb", add_bos=False)
    found = specdec.measure(
        texts.target, texts.draft, [source, "ab"], gammas=[2], temperatures=[1.0], leniences=[1.0],
        n_tokens=40, timing=specdec.Timing(repeats=1, n_tokens=10),
    )  # fmt: skip
    assert found.prompts[0] == source
    tokens, betas = found.tokens[1.0][0], found.betas[1.0][0]
    text = [*START, *tokens[:-1]]
    rows = [reference.distribution(row, 1.0) for row in texts.target.logits(text, source)]
    drafted = [reference.distribution(row, 1.0) for row in texts.draft.logits(text, source)]
    assert betas == pytest.approx([np.minimum(p, q).sum() for p, q in zip(rows, drafted, strict=True)])
    assert found.rows[0].c > 0.0 and found.verify_ratio[3] > 0.0
    once: dict[str, Any] = {"gammas": [1], "temperatures": [0.0], "n_tokens": 10, "timing": False}
    for draft in (drafts.Bigram(tokens, 61), decoder_only()):
        assert 0.0 <= specdec.measure(texts.target, draft, source, **once).rows[0].alpha <= 1.0


@pytest.mark.usefixtures("quick_timing")
def test_drafts_are_compared(texts: EncoderDecoder) -> None:
    given = {"model": texts.draft, "itself": texts.target}
    found = specdec.compare(texts.target, given, ["ab", "a bb"], gammas=[2], temperatures=[0.0], n_tokens=16,
                            timing=False)  # fmt: skip
    rows = {row.draft: row for row in found.rows}
    assert rows["itself"].alpha == 1.0 > rows["model"].alpha > 0.0


@pytest.mark.slow
def test_tuning_and_oracle(texts: EncoderDecoder) -> None:
    assert specdec.tune(texts.target, texts.draft, ["ab", "a"], n_tokens=20, max_gamma=2).gamma in (0, 1, 2)
    found = specdec.oracle(texts.target, texts.draft, "ab", gammas=[1, 2], max_gamma=2, max_new_tokens=10)
    assert found.n_tokens == 10


@pytest.mark.notebook
def test_figures(texts: EncoderDecoder) -> None:
    """Of runs and of a measurement: all generated tokens are colored."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from specdec import plot

    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    runs = [specdec.generate(texts.target, draft, "a bb", **options) for draft in (texts.draft, None)]
    axes = plot.timeline(runs)
    assert axes.collections or axes.patches
    pyplot.close("all")
    found = specdec.measure(
        texts.target, texts.draft, ["ab", "b"], gammas=[1], temperatures=[1.0], leniences=[1.0], n_tokens=16,
        timing=False,
    )  # fmt: skip
    for shown in (runs[0], found):
        assert plot.heat_map_html(shown).count("<span") > 8


def test_a_result_shows_its_source(texts: EncoderDecoder, t5: EncoderDecoder) -> None:
    shown = specdec.generate(texts.target, texts.draft, "a bb", decoder_prompt="ab", max_new_tokens=3)
    assert "a bb → ab" in shown.figure() and "a bb → ab" in shown._repr_html_()
    ids = specdec.generate(t5.target, None, [5, 6], max_new_tokens=2, ignore_eos=True)
    assert ids.figure().startswith("5 6 → 0")
    assert "2 layers of an encoder, 2 of a decoder" in repr(t5.target)


def test_the_snippet_of_the_page_runs(tmp_path: Path) -> None:
    """With random byte models, like ByT5."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    config, tokenizer = EncoderDecoder("t5", n_vocab=384).config, load_tokenizer(tmp_path)
    target, draft = (model_of(config, lively_tensors(config, seed), tokenizer) for seed in (1, 2))
    page = (Path(__file__).parents[1] / "docs" / "GENERATING.md").read_text(encoding="utf-8")
    (snippet,) = [part for part in page.split("```") if "decoder_prompt" in part and part.startswith("py\n")]
    given = {"path/to/t5-large": target, "path/to/t5-small": draft}
    library = types.SimpleNamespace(load=given.get, generate=specdec.generate, drafts=drafts)
    names: dict[str, Any] = {"specdec": library}
    exec(snippet.removeprefix("py\n"), names)
    assert names["out"].source_text == names["source"]


# ------------------------------------------------------------------------------------------- command line


@pytest.fixture
def named_models(texts: EncoderDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models that the command loads as "target", "draft" and "plain"."""
    models = {"target": texts.target, "draft": texts.draft, "plain": decoder_only(tokenizer=ToyTokenizer())}
    monkeypatch.setattr("specdec.commands.given_models.load", lambda name, dtype, **_: models[name])
    monkeypatch.setattr(drafts, "named", lambda name, target, dtype: drafts.ModelDraft(models[name]))


@pytest.mark.usefixtures("named_models")
def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--target", "target", "--draft", "draft", "--max-new-tokens", "6", "--threads", "1", "--no-color"]
    for prompt in ([], ["ba"]):
        assert main([*pair, "--source", "a bb", *prompt]) == 0
        output, errors = capsys.readouterr()
        assert f"a bb → {''.join(prompt)}" in output and "identical, all 6 tokens" in output and not errors
        assert "greedy texts" not in output  # this one is
        assert main([*pair, "--source", "a bb", "--temperature", "0.6", *prompt]) == 0
        output, errors = capsys.readouterr()
        (greedy,) = [line for line in output.splitlines() if line.startswith("greedy texts")]
        assert "--source 'a bb'" in greedy and greedy.endswith(" ".join(["--threads 1", *prompt]))
    plain = ["--target", "plain", "--draft", "plain", "--source", "ab"]
    for call, message in (([*pair, "a bb"], "--source is missing"), (plain, "random has no encoder")):
        assert main(call) == 2 and message in capsys.readouterr().err


@pytest.mark.usefixtures("named_models")
def test_the_command_lines_languages(
    texts: EncoderDecoder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--target", "target", "--draft", "draft", "--source", "a bb", "--max-new-tokens", "6"]
    assert main([*call, "--tgt-lang", "de"]) == 2
    assert "tgt_lang is 'de'; expected None: the tokenizer has no languages" in capsys.readouterr().err
    asked: list[tuple[specdec.Model, dict[str, Any]]] = []

    def with_languages(model: specdec.Model, **languages: Any) -> specdec.Model:
        asked.append((model, languages))
        return model

    monkeypatch.setattr(specdec.Model, "with_languages", with_languages)
    assert main([*call, "--src-lang", "en", "--tgt-lang", "de"]) == 0
    languages = {"src_lang": "en", "tgt_lang": "de"}
    assert asked == [(texts.target, languages), (texts.draft, languages)]


# ------------------------------------------------------------------------------------------------- errors


def test_what_is_refused(t5: EncoderDecoder, texts: EncoderDecoder) -> None:
    plain, source = decoder_only(tokenizer=ToyTokenizer()), [5, 6]
    asked: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    for call in (specdec.generate, specdec.stream, specdec.beam_search):
        with refuses("decoder_prompt"):
            call(plain, None, source, decoder_prompt=[1])
    for call in (specdec.generate, specdec.stream):
        with refuses("messages"):
            call(texts.target, None, messages=asked)
    nested = drafts.ModelDraft(plain, draft=t5.draft)
    for draft in (t5.draft, drafts.ModelDraft(t5.draft), drafts.Ensemble(t5.draft), nested):
        for call in (specdec.generate, specdec.beam_search, specdec.measure)[: 3 if draft is t5.draft else 1]:
            with pytest.raises(InputError, match="the draft has an encoder and target random has none"):
                call(plain, draft, source)
    small = EncoderDecoder("t5", n_vocab=50)
    with pytest.raises(VocabularyMismatchError):
        specdec.generate(t5.target, small.draft, source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": [[5], []]}, "prompt 1: source has 0 token ids; expected at least 1"),
        ({"prompt": [61]}, "prompt: token id at position 0 is 61; expected 0 to 60"),
        ({"prompt": [5] * 129}, "prompt: source has 129 token ids; expected at most 128"),
        ({"prompt": "a"}, "prompt: a text was given, but"),
        ({"prompt": [5], "decoder_prompt": [61]}, "decoder_prompt of prompt: token id at position 0 is 61"),
        ({"prompt": [5], "decoder_prompt": [5] * 95}, "decoder_prompt of prompt: there are 96 token ids"),
        ({"prompt": [5], "decoder_prompt": [[5], [6]]}, "decoder_prompt is a list of 2 for 1 source"),
        ({"prompt": [[5]], "decoder_prompt": [[5], [6]]}, "decoder_prompt is a list of 2 for 1 source"),
        ({"prompt": [[5], [6]], "decoder_prompt": [[5]]}, "decoder_prompt is a list of 1 for 2 sources"),
        ({"prompt": [5], "decoder_prompt": 3}, "decoder_prompt is an int; expected text, token ids"),
        ({"prompt": [[5], [6]], "decoder_prompt": [[5], 6]}, "decoder_prompt mixes both"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(t5: EncoderDecoder, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        specdec.generate(t5.target, None, **arguments)
    assert message in str(caught.value)


def test_a_model_that_names_no_start_needs_a_decoder_prompt(t5: EncoderDecoder) -> None:
    core, config = t5.target.core, t5.target.config
    model = specdec.Model(core, config, None, t5.target.path, "random")
    with pytest.raises(InputError, match="prompt: random defines no decoder start ids"):
        specdec.generate(model, None, [5])
    wanted = generate(t5.target, None, [5])
    assert generate(model, None, [5], decoder_prompt=START).tokens == wanted.tokens


def test_a_source_for_logits(t5: EncoderDecoder) -> None:
    for name in ("logits", "score"):
        with pytest.raises(InputError, match="source is None, but random has an encoder"):
            getattr(t5.target, name)([0, 5])
        with pytest.raises(InputError, match="a source was given, but random has no encoder"):
            getattr(decoder_only(), name)([0, 5], [5])
