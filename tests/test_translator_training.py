"""Training of translators (`training/`): the split, batches, resumed runs, and saved folders."""

from __future__ import annotations

import io
import random
import shutil
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.oracle
TRAINING = Path(__file__).parents[1] / "training"

NOUNS = {"dog": "犬", "cat": "猫", "book": "本", "house": "家", "ship": "船", "tree": "木", "car": "車"}
VERBS = {"sees": "見る", "likes": "好む", "buys": "買う", "draws": "描く", "forgets": "忘れる"}
NUMBERS = {"one": "一", "two": "二", "three": "三", "four": "四", "five": "五", "six": "六"}


def invented_pairs() -> list[tuple[str, str]]:
    return [
        (f"the {a} {verb} {number} {b}s .", f"{NOUNS[a]} は {NOUNS[b]} を {NUMBERS[number]} {VERBS[verb]} 。")
        for a in NOUNS
        for verb in VERBS
        for number in NUMBERS
        for b in NOUNS
    ]


@pytest.fixture(scope="module")
def training() -> Any:
    """The scripts, imported as modules."""
    sys.path.insert(0, str(TRAINING))
    try:
        import loop
        import pairs
        import train_translator
        import train_translator_draft
        import translations
        import translator
    finally:
        sys.path.remove(str(TRAINING))
    return SimpleNamespace(
        loop=loop, pairs=pairs, translator=translator, translations=translations,
        target=train_translator, draft=train_translator_draft,
    )  # fmt: skip


@pytest.fixture(scope="module")
def work(training: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `pairs.py` for an archive of invented sentences."""
    folder = tmp_path_factory.mktemp("translation")
    found = invented_pairs()
    random.Random(0).shuffle(found)
    with tarfile.open(folder / "pairs.tar.xz", "w:xz") as tar:
        for split, part in (("train", found[:-200]), ("dev", found[-200:-100]), ("test", found[-100:])):
            for side, language in enumerate(("en", "ja")):
                data = "".join(pair[side] + "\n" for pair in part).encode()
                member = tarfile.TarInfo(f"./{split}.{language}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    training.pairs.main([str(folder / "pairs.tar.xz"), "--work", str(folder), "--vocabulary", "80"])
    return folder


@pytest.fixture
def small_shapes(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = training.translator.Shape
    monkeypatch.setitem(training.translator.SHAPES, "target", shape(32, 64, 2, 2, 16))
    monkeypatch.setitem(training.translator.SHAPES, "small", shape(16, 32, 1, 2, 8))


def test_the_split_is_a_function_of_the_pair(training: Any) -> None:
    """One in fifty, within four standard deviations; a sentence is in one split, whatever the order.

    Five English sentences for each Japanese one, and the reverse.
    """
    alone = [training.pairs.split_of((f"sentence {i}", f"文 {i}")) for i in range(5000)]
    assert [alone[i] for i in (0, 21, 92)] == ["train"] * 3
    assert all(abs(alone.count(name) - 100) < 40 for name in ("test", "valid"))
    found = [(f"e{i}", f"j{i // 5}") for i in range(3000)] + [(f"e{i // 5}x", f"j{i}x") for i in range(3000)]
    splits = training.pairs.split(found)
    again = training.pairs.split(random.Random(1).sample(found, len(found)))
    assert {name: sorted(part) for name, part in splits.items()} == {
        name: sorted(part) for name, part in again.items()
    }
    for side in (0, 1):
        sentences = [{pair[side] for pair in part} for part in splits.values()]
        assert len(set.union(*sentences)) == sum(map(len, sentences))
    assert all(training.pairs.split_of(pair) == name for name, part in splits.items() for pair in part)
    assert sorted(splits["test"]) == sorted(pair for pair in found if training.pairs.split_of(pair) == "test")


def test_what_is_written_of_the_archive(training: Any, work: Path) -> None:
    """Every pair once, without spaces in Japanese; both tokenizer files agree."""
    import sentencepiece
    from tokenizers import Tokenizer

    splits = {name: training.pairs.read_pairs(work / f"{name}.tsv") for name in ("train", "valid", "test")}
    expected = {(english, japanese.replace(" ", "")) for english, japanese in invented_pairs()}
    assert len(set().union(*splits.values())) == sum(map(len, splits.values()))
    assert set().union(*splits.values()) == expected  # no two pairs share a sentence
    library = sentencepiece.SentencePieceProcessor(str(work / "tokenizer" / "spiece.model"))
    file = Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json"))
    assert [library.pad_id(), library.eos_id(), library.unk_id()] == [0, 1, 2]
    for sentence in (*splits["test"][0], *splits["valid"][0], "a ｆｕｌｌ  width,\tsentence", ""):
        assert file.encode(sentence).ids == library.encode(sentence, add_eos=True)


def test_batches(training: Any) -> None:
    """Each epoch has a pair at most once, among similar lengths; a later start yields the same batches."""
    rng = np.random.default_rng(0)
    sides = [[np.zeros(n, np.uint16) for n in rng.integers(1, 40, 1000)] for _ in range(2)]
    whole = list(training.translator.batches(*sides, 30, 7, range(80)))
    assert [step for step, _ in whole] == list(range(80))
    for passage in (whole[:33], whole[33:66]):
        rows = np.concatenate([rows for _, rows in passage])
        assert len(rows) == len(set(rows.tolist())) == 990
    for _, rows in whole:  # 33 batches of 39 lengths, then 25 pairs of a length of targets
        lengths = [len(sides[1][i]) for i in rows]
        assert max(lengths) - min(lengths) <= 3
    later = list(training.translator.batches(*sides, 30, 7, range(50, 80)))
    assert [step for step, _ in later] == list(range(50, 80))
    for (_, found), (_, rows) in zip(later, whole[50:], strict=True):
        assert np.array_equal(found, rows)
    with pytest.raises(SystemExit, match="10 pairs are less than a batch of 30"):
        next(training.translator.batches(sides[0][:10], sides[1][:10], 30, 7, range(1)))


def test_divergences_of_known_distributions(training: Any) -> None:
    import torch

    target = torch.tensor([[0.5, 0.25, 0.25]] * 2)
    draft = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]])
    kl, variation = training.loop.divergences(target.log(), draft.log())
    assert kl.item() == pytest.approx((0.5 * np.log(2) - 0.25 * np.log(2)) / 2, rel=1e-6)
    assert variation.item() == pytest.approx(0.125, rel=1e-6)


def run(main: Any, work: Path, *words: str) -> None:
    main([*words, "--work", str(work), "--steps", "6", "--checkpoint-every", "2", "--threads", "1"])


def interrupted_and_resumed(
    training: Any, main: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> None:
    """Interrupt the process within a step after the second checkpoint, then repeat the command."""
    save, saved = training.loop.save_checkpoint, []

    def save_and_stop(path: Path, model: Any, optimizers: Any, step: int) -> None:
        save(path, model, optimizers, step)
        saved.append(step)
        if step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.loop, "save_checkpoint", save_and_stop)
        run(main, folder, *words)
    assert saved == [2, 4]
    run(main, folder, *words)


@pytest.mark.usefixtures("small_shapes")
def test_resumed_trainings_end_with_the_same_weights(
    training: Any, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the target, with dropout, and of a draft distilled from it; losses are equal too."""
    one, two = (shutil.copytree(work, tmp_path / name) for name in ("one", "two"))
    for main, words, name in (
        (training.target.main, (), "target"),
        (training.draft.main, ("small", "--sources", "200"), "small"),
    ):
        run(main, one, *words, "--pairs-per-step", "64")
        interrupted_and_resumed(training, main, two, monkeypatch, *words, "--pairs-per-step", "64")
        curves = [(folder / f"{name}_loss.tsv").read_text().splitlines() for folder in (one, two)]
        lines, again = ([line.split("\t")[:-1] for line in curve] for curve in curves)  # without the seconds
        assert lines == again and [line[0] for line in lines] == ["step", "1", "3", "5"]
        weights = [(folder / name / "model.safetensors").read_bytes() for folder in (one, two)]
        assert weights[0] == weights[1]


@pytest.mark.usefixtures("small_shapes")
def test_a_saved_translator_is_what_was_trained(training: Any, work: Path, tmp_path: Path) -> None:
    """In the T5 v1.1 layout: with its own head, whose logits are not scaled."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = training.translator.build(training.translator.SHAPES["target"], 80).bfloat16().float().eval()
    training.translator.save_folder(model, tmp_path / "saved", work / "tokenizer")
    read = T5ForConditionalGeneration.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    assert not torch.equal(read.lm_head.weight, read.shared.weight)
    sources, targets = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]]), torch.tensor([[9, 3, 1], [4, 1, 0]])
    with torch.no_grad():
        expected = training.translator.logits(model, sources, targets)
        # transformers makes the decoder's input of labels; padding is -100 there.
        found = read(
            input_ids=sources, attention_mask=sources != 0, labels=targets.masked_fill(targets == 0, -100)
        )
    assert torch.equal(found.logits, expected)
    labels = targets.flatten() != 0
    by_hand = -expected.log_softmax(-1).flatten(0, 1)[labels, targets.flatten()[labels]].mean()
    assert training.translator.cross_entropy(model, sources, targets).item() == pytest.approx(by_hand.item())
    assert found.loss.item() == pytest.approx(by_hand.item(), rel=1e-6)


@pytest.mark.usefixtures("small_shapes")
def test_translations_are_kept_in_the_order_of_their_sources(
    training: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    model = training.translator.build(training.translator.SHAPES["target"], 80).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=1.0)
    rng = np.random.default_rng(3)
    sources = [np.append(rng.integers(3, 80, n), 1).astype(np.uint16) for n in (7, 2, 5, 2, 9)]
    monkeypatch.setattr(training.translations, "BATCH", 2)
    greedy = training.translations.written(model, sources, tmp_path / "greedy", False)
    assert len(list((tmp_path / "greedy").iterdir())) == 3
    assert all(1 not in row[:-1] and (row[-1] == 1 or len(row) == 64) for row in greedy)
    for source, row in zip(sources, greedy, strict=True):
        alone = training.translations.translate(model, [source], False, 0)[0]
        assert np.array_equal(alone[: len(row)], row)
    (tmp_path / "greedy" / "00001.npy").unlink()  # as if the run had ended before
    again = training.translations.written(model, sources, tmp_path / "greedy", False)
    assert all(map(np.array_equal, greedy, again))
    sampled = training.translations.written(model, sources, tmp_path / "sampled", True)
    assert not all(map(np.array_equal, greedy, sampled))
