"""Infilling: prompts by the templates of code models, their ends, and the `suffix` of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import specdec
from http_talk import ask
from refusals import refuses
from scripted_engine import serving
from specdec.serve import Server, Service
from worlds.folders import llama_config, write_hf

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
"""Qwen 2.5 Coder and CodeGemma; the tokens of Qwen are not special."""
STAR = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
TEMPLATES = {
    "Qwen 2.5 Coder": (QWEN, ("<|fim_pad|>", "<|file_sep|>"), False),
    "CodeGemma": (QWEN, ("<|file_separator|>",), True), "StarCoder": (STAR, ("<file_sep>",), True),
    "DeepSeek Coder": (DEEPSEEK, (), True),
}  # fmt: skip
CODE = "def add(a, b):\n    ", "\n\nprint(add(1, 2))  # naïve 🙂\n"
TOKENIZER = Path(specdec.__file__).parent / "embedded" / "target" / "tokenizer.json"


@pytest.fixture(scope="module", params=TEMPLATES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Random weights, with a tokenizer that has the tokens of one template."""
    names, others, special = TEMPLATES[request.param]
    found = json.loads(TOKENIZER.read_text())
    (first,) = found["added_tokens"]
    for token, name in enumerate([*names, *others], 8192):
        found["added_tokens"].append({**first, "id": token, "content": name, "special": special})
    config = llama_config(vocab_size=8192 + len(names) + len(others), bos_token_id=0, eos_token_id=0)
    folder = write_hf(tmp_path_factory.mktemp("model"), {**config, "max_position_embeddings": 200})
    (folder / "tokenizer.json").write_text(json.dumps(found))
    return specdec.load(folder), names, others


def test_a_prompt_is_prefix_suffix_middle(model: Any) -> None:
    target, names, others = model
    encode = target.tokenizer.encode
    prefix, suffix, middle = (8192 + i for i in range(3))
    before, after = (encode(text, add_bos=False) for text in CODE)
    assert target.infill_ids(*CODE) == [*encode(""), prefix, *before, suffix, *after, middle]
    assert target.infill_ids(before, CODE[1]) == target.infill_ids(*CODE)
    assert {*target.infill_end_ids} == {0, *range(8192, 8192 + len(names) + len(others))}


@pytest.mark.oracle
def test_ids_are_those_of_transformers(model: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    target, (prefix, suffix, middle), _ = model
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(target.path / "tokenizer.json"))
    text = f"{prefix}{CODE[0]}{suffix}{CODE[1]}{middle}"
    assert target.infill_ids(*CODE) == theirs.encode(text)


def test_a_server_writes_between_prompt_and_suffix(model: Any) -> None:
    target = model[0]
    body = {"prompt": CODE[0], "suffix": CODE[1], "max_tokens": 30, "temperature": 0}
    wanted = specdec.generate(
        target, None, target.infill_ids(*CODE), stop=target.infill_end_ids, max_new_tokens=30
    )
    with specdec.Engine(target, n_threads=1) as engine, Server(Service(engine, ["mine"]), port=0) as server:
        _, answer = ask(server.url, "/v1/completions", body)
        assert answer["choices"][0]["text"] == wanted.text
        assert answer["usage"]["prompt_tokens"] == len(wanted.prompt_ids)
    middle = target.tokenizer.encode("    return a", add_bos=False)
    with serving(target, [*middle, target.infill_end_ids[-1]]) as (engine, server):
        for more in ({}, {"stop": ["x"]}, {"prompt": [CODE[0], [5, 6]]}):
            assert ask(server.url, "/v1/completions", {**body, **more})[0] == 200
            assert {*target.infill_end_ids} <= {*engine.asked[-1]["stop"]}
        assert engine.asked[-1]["prompt"] == target.infill_ids([5, 6], CODE[1])
        ask(server.url, "/v1/completions", {**body, "ignore_eos": True})
        assert engine.asked[-1]["stop"] == []
        status, answer = ask(server.url, "/v1/completions", {**body, "echo": True})
        assert (status, answer["error"]["param"]) == (400, "suffix")


def test_a_model_without_such_tokens_is_named() -> None:
    target, _ = specdec.embedded_pair()
    assert target.infill_end_ids == ()
    with refuses("suffix"):
        target.infill_ids(*CODE)
