"""lm-evaluation-harness: scores and time with and without speculative decoding."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specdec
from benchmarks.interleaved import DTYPES, Options, progress
from benchmarks.report import Report

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "speculative": {"draft": True},
    "plain, batched": {"batch_size": 16},
    "speculative, batched": {"draft": True, "batch_size": 16},
    "speculative, batched, prompts cached": {"draft": True, "batch_size": 16, "prompt_cache": True},
}
AGAIN = "speculative, batched, from the harness's cache"
TASKS = ("endings", "articles", "gsm8k_local", "humaneval_local")


# ── Tasks from local files


def write_tasks(folder: Path, shared: Path, n_docs: Mapping[str, int], n_new: int, n_chars: int) -> None:
    """Write the tasks and their documents.

    Parameters
    ----------
    folder : Path
        Existing folder for a YAML file and a JSON Lines file per task.
    shared : Path
        Folder with ``data/wikitext2``, ``data/gsm8k`` and ``data/humaneval``.
    n_docs : mapping
        Number of documents by task.
    n_new : int
        Largest number of new tokens per text.
    n_chars : int
        Largest number of characters per article, for rolling windows.
    """
    data = shared / "data"
    wiki = (data / "wikitext2" / "wiki.test.txt").read_text(encoding="utf-8")
    questions = _lines((data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8"))
    with gzip.open(data / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        programs = _lines(file.read())
    shown = "".join(f"Question: {one['question']}\nAnswer: {one['answer']}\n\n" for one in questions[-2:])
    text = {"output_type": "generate_until", "metric_list": [{"metric": "chrf"}, {"metric": "exact_match"}]}
    options = {"max_gen_toks": n_new, "do_sample": False}
    tasks: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "endings": (
            list(_endings(wiki)),
            {
                "output_type": "multiple_choice",
                "doc_to_text": "{{begin}}",
                "doc_to_choice": "ends",
                "doc_to_target": "right",
                "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
            },
        ),
        "articles": (
            [{"page": page[:n_chars]} for page in re.split(r"\n(?= = [^=\n]+ = \n)", wiki)[1:]],
            {
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "doc_to_target": "{{page}}",
                "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
            },
        ),
        "gsm8k_local": (
            [{**one, "shown": shown} for one in questions],
            {
                **text,
                "doc_to_text": "{{shown}}Question: {{question}}\nAnswer:",
                "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], **options},
            },
        ),
        "humaneval_local": (
            programs,
            {
                **text,
                "doc_to_text": "{{prompt}}",
                "doc_to_target": "{{canonical_solution}}",
                "generation_kwargs": {"until": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"], **options},
            },
        ),
    }
    for name in TASKS:
        docs, task = tasks[name]
        file_name = folder / f"{name}.jsonl"
        lines = [json.dumps(doc, ensure_ascii=False) + "\n" for doc in docs[: n_docs[name]]]
        file_name.write_text("".join(lines), encoding="utf-8")
        whole = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(file_name)},
                "cache_dir": str(folder / "datasets"),
            },
            "test_split": "test",
            "num_fewshot": 0,
            **task,
        }
        # JSON is valid YAML.
        (folder / f"{name}.yaml").write_text(json.dumps(whole, indent=2), encoding="utf-8")


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line]


def _endings(wiki: str) -> Iterator[dict[str, Any]]:
    """Yield paragraphs without their last sentence, and four last sentences, one of them right."""
    cut = [line.strip().split(" . ") for line in wiki.splitlines() if line.count(" . ") > 3]
    paragraphs = [(" . ".join(sentences[:-1]) + " .", " " + sentences[-1]) for sentences in cut]
    for i, (begin, end) in enumerate(paragraphs[:-3]):
        ends = [other for _, other in paragraphs[i + 1 : i + 4]]
        ends.insert(i % 4, end)
        yield {"begin": begin, "ends": ends, "right": i % 4}


# ── Evaluations


@dataclass
class Evaluation:
    """Result of one task.

    Attributes
    ----------
    scores : dict
        Scores of the harness, by metric.
    answers : list
        Answers of the model, a list per document.
    seconds : float
        Wall clock time.
    """

    scores: dict[str, Any]
    answers: list[Any]
    seconds: float


def evaluate(lm: Any, folder: Path, task: str) -> Evaluation:
    """Evaluate one task of a folder with the harness, without confidence intervals."""
    from lm_eval.evaluator import evaluate as run
    from lm_eval.tasks import TaskManager

    loaded = TaskManager(include_path=str(folder), include_defaults=False).load([task])
    began = time.perf_counter()
    found = run(lm, loaded, bootstrap_iters=0, log_samples=True)
    seconds = time.perf_counter() - began
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    scores = {name: value for name, value in found["results"][task].items() if "stderr" not in name}
    return Evaluation(scores, [sample["resps"] for sample in samples], seconds)


def specdec_lm(target: Any, draft: Any, mode: Mapping[str, Any], gamma: Any, n_threads: int) -> Any:
    """Return the harness model for one of the `MODES`."""
    from specdec.integrations.lm_eval import SpecdecLM

    options = {**mode, "draft": draft if mode.get("draft") else None}
    return SpecdecLM(target, gamma=gamma, n_threads=n_threads, **options)


def hf_lm(folder: Path, n_threads: int, batch_size: int = 1) -> Any:
    """Return the harness's own model of a checkpoint, in float32 on the CPU."""
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(n_threads)
    return HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=batch_size)


def hf_folder(target: specdec.Model, folder: Path) -> Path:
    """Copy the embedded target and add the names of special tokens that `transformers` needs."""
    shutil.copytree(target.path, folder)
    tokenizer: Any = target.tokenizer
    (name,) = (name for name, token in tokenizer.special_tokens().items() if token == tokenizer.bos_id)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{token}_token": name for token in ("bos", "eos", "pad")},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def differences(ours: Evaluation, theirs: Evaluation) -> tuple[float, float, int, int]:
    """Compare answers.

    Returns
    -------
    (float, float, int, int)
        Largest absolute and relative difference of log-likelihoods; number of answers that differ in the text
        or the greedy flag; number of answers.
    """
    absolute, relative, n_other, n = 0.0, 0.0, 0, 0
    for mine, other in zip(_flat(ours.answers), _flat(theirs.answers), strict=True):
        n += 1
        if isinstance(mine, str):
            n_other += mine != other
            continue
        one, two = (mine, other) if isinstance(mine, float) else (mine[0], other[0])
        absolute = max(absolute, abs(one - two))
        relative = max(relative, abs(one - two) / abs(two))
        n_other += not isinstance(mine, float) and mine[1] != other[1]
    return absolute, relative, n_other, n


def _flat(answers: Sequence[Any]) -> Iterator[Any]:
    """Flatten nested lists to log-likelihoods, with or without flags, and texts."""
    for answer in answers:
        if isinstance(answer, list | tuple) and not _is_pair(answer):
            yield from _flat(answer)
        else:
            yield tuple(answer) if isinstance(answer, list) else answer


def _is_pair(answer: Sequence[Any]) -> bool:
    return len(answer) == 2 and isinstance(answer[0], float) and isinstance(answer[1], bool)


# ── The program


def harness_options(options: Options) -> None:
    options.pair()
    options.many("--dtypes", str, DTYPES, choices=DTYPES)
    options.add("--shared", type=Path, default=Path(os.environ.get("SPECDEC_SHARED") or "../shared"))
    options.add("--gamma", default="auto", type=lambda text: text if text == "auto" else int(text))
    options.add("--docs", type=int, default=40, help="documents per task (articles: a quarter)")
    options.add("--tokens", type=int, default=128, help="new tokens per text")
    options.add("--chars", type=int, default=20_000, help="characters per article")
    options.add("--no-hf", action="store_true", help="skip the harness's own model")


def harness(args: argparse.Namespace, report: Report) -> None:
    """Scores and wall clock time of lm-evaluation-harness: plain, speculative, batched and cached.

    Four tasks from local files: multiple choice and rolling perplexity on WikiText-2, and generation for
    GSM8K and HumanEval. Fails if two modes answer any request differently. The last table compares with the
    harness's own transformers model, on the same checkpoint in f32.
    """
    n_docs = {name: args.docs if name != "articles" else max(1, args.docs // 4) for name in TASKS}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "tasks"
        folder.mkdir()
        write_tasks(folder, args.shared, n_docs, args.tokens, args.chars)
        columns = {"format": "", "mode": "", **{f"{name}, s": ".1f" for name in TASKS}}
        table = report.table({**columns, "tokens a call": ".2f", "alpha": ".3f"}, "Wall clock")
        exact: dict[str, Evaluation] = {}
        for dtype in args.dtypes:
            found = _run_modes(args, dtype, folder, Path(work), table)
            exact = found if dtype == "f32" else exact
        if exact:
            scores = report.table({"task": "", "metric": "", "value": ".4f"}, "Scores in f32")
            for name, one in exact.items():
                for metric, value in one.scores.items():
                    if isinstance(value, float):
                        scores.row(name, metric.partition(",")[0], value)
        if exact and not args.no_hf:
            _compare_with_hf(args, exact, folder, Path(work), report)


def _run_modes(
    args: argparse.Namespace, dtype: str, folder: Path, work: Path, table: Any
) -> dict[str, Evaluation]:
    """Run all modes in one format and return the first one's evaluations; refuse any difference."""
    from lm_eval.api.model import CachingLM

    target, draft = _pair(args, dtype)
    first: dict[str, Evaluation] = {}
    for mode in progress([*MODES, AGAIN], dtype):
        again = mode == AGAIN
        lm = specdec_lm(
            target, draft, MODES["speculative, batched" if again else mode], args.gamma, args.threads
        )
        seconds = []
        for task in TASKS:
            if again:
                cached = CachingLM(lm, str(work / f"{dtype}-{task}.db"))
                evaluate(cached, folder, task)
                one = evaluate(cached, folder, task)
                cached.dbdict.close()
            else:
                one = evaluate(lm, folder, task)
            seconds.append(one.seconds)
            if (one.answers, one.scores) != (first.setdefault(task, one).answers, first[task].scores):
                raise RuntimeError(f"{dtype}, {task}: '{mode}' and '{next(iter(MODES))}' differ")
        figures = lm.tally.figures()
        table.row(dtype, mode, *seconds, figures["tokens_per_call"], figures["acceptance_rate"])
    return first


def _compare_with_hf(
    args: argparse.Namespace, exact: dict[str, Evaluation], folder: Path, work: Path, report: Report
) -> None:
    target, _ = _pair(args, "f32")
    checkpoint = hf_folder(target, work / "checkpoint") if args.target is None else Path(args.target)
    lm = hf_lm(checkpoint, args.threads)
    columns = {
        "task": "",
        "answers": "d",
        "largest difference of ln p": ".1e",
        "as a share": ".1e",
        "other answers": "d",
    }
    table = report.table({**columns, "specdec, s": ".1f", "hf, s": ".1f"}, "Compared with the model `hf`")
    for task in TASKS:
        theirs = evaluate(lm, folder, task)
        absolute, relative, n_other, n = differences(exact[task], theirs)
        table.row(task, n, absolute, relative, n_other, exact[task].seconds, theirs.seconds)


def _pair(args: argparse.Namespace, dtype: Any) -> tuple[specdec.Model, specdec.Model]:
    if args.target is None:
        return specdec.embedded_pair(dtype, dtype)
    return specdec.load(args.target, dtype), specdec.load(args.draft, dtype)
