"""Random configurations and damaged files of a fixed seed, and the program that runs them.

`make fuzz` runs 20,000 of either, with a fresh seed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"

SEED, CONFIGURATIONS, FILES = 1, 400, 400
"""About ten seconds of two cores."""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", *map(str, arguments)]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_no_difference_no_hang_no_unnamed_exception() -> None:
    found = run(
        "--seed", SEED, "--configurations", CONFIGURATIONS, "--files", FILES,
        "--processes", min(2, os.cpu_count() or 1),
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    for n, what in ((CONFIGURATIONS, "configurations"), (FILES, "damaged files")):
        assert f"{n} {what}: 0 differences, 0 hangs, 0 unnamed exceptions, 0 crashes" in found.stdout


def test_equal_seeds_give_equal_cases() -> None:
    from fuzz.damage import file_case
    from fuzz.worlds import case

    for index in range(50):
        assert case(3, index) == case(3, index)
        assert file_case(3, index) == file_case(3, index)
    assert case(3, 0) != case(4, 0)


def test_sound_files_are_read() -> None:
    from fuzz.checks import check
    from fuzz.files import KINDS

    for kind in KINDS:
        assert check({"check": "file", "kind": kind, "mutations": []}) == "passed", kind


BROKEN = {
    "hang": "while True: pass",
    "crash": "import os; os.abort()",
    "exception": "raise OSError('x')",
    "memory": "bytearray(8 << 30)",
    "difference": "from fuzz.failures import Failure; raise Failure('difference', 'x')",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_worker_says_how_its_case_failed_and_is_replaced(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A site of a worker's own breaks one of the checks, as a broken package would."""
    if kind == "memory" and sys.platform != "linux":
        pytest.skip("needs Linux")
    from fuzz.workers import Limits, Pool

    (tmp_path / "broken.py").write_text(f"def check_beams(case):\n    {BROKEN[kind]}\n")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{tmp_path}")
    (tmp_path / "sitecustomize.py").write_text("import sys, broken\nsys.modules['fuzz.beams'] = broken\n")
    with Pool(1, Limits(processor_s=1.0, clock_s=30.0)) as pool:
        cases = [{"check": "beams"}, {"check": "file", "kind": "skips", "mutations": []}]
        outcomes = [outcome.status for _, outcome in pool.run([[("case", case) for case in cases]])]
    assert outcomes == [kind, "passed"]


def test_a_failure_is_printed_as_a_script_that_fails(tmp_path: Path) -> None:
    from fuzz.scripts import script
    from fuzz.worlds import case

    sound = next(found for i in range(100) if (found := case(1, i))["check"] == "beams")
    broken = sound | {"check": "no such check"}
    for found, expected in ((sound, 0), (broken, 1)):
        run = subprocess.run([sys.executable, "-c", script(found)], cwd=TESTS, capture_output=True)
        assert run.returncode == expected


def test_a_failure_is_printed_with_the_command_that_gives_the_same_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a package that fails for one configuration of a seed."""
    from fuzz.worlds import case

    index = next(i for i in range(20, 100) if case(5, i)["check"] == "beams")
    (tmp_path / "broken.py").write_text(
        "from fuzz.failures import Failure\n\n\n"
        "def check_beams(case):\n"
        f"    if case['prompt'] == {case(5, index)['prompt']}:\n"
        "        raise Failure('difference', 'x')\n"
        "    return 'passed'\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{tmp_path}")
    (tmp_path / "sitecustomize.py").write_text("import sys, broken\nsys.modules['fuzz.beams'] = broken\n")
    options = ("--processes", 1, "--no-shrink")
    found = run("--seed", 5, "--first", index - 1, "--configurations", 3, "--files", 0, *options)
    command = re.search(r"# .*: 1 of them, the first by python -m fuzz (.*)", found.stdout)
    assert command is not None, found.stdout + found.stderr
    again = run(*command[1].split(), *options)
    assert "1 configurations: 1 differences" in again.stdout
    assert found.stdout.partition("print(check(")[2].partition("\n\n")[0] in again.stdout


def test_a_case_is_made_smaller_as_long_as_it_fails() -> None:
    from fuzz.drafts import descriptions
    from fuzz.failures import Outcome
    from fuzz.shrinking import shrink
    from fuzz.worlds import case

    def fails(one: dict[str, object]) -> Outcome:
        kinds = {part["kind"] for part in descriptions(one["draft"])}
        return Outcome("difference" if "lookahead" in kinds else "passed", "always the same")

    whole = next(
        found for i in range(1000) if (found := case(1, i))["check"] == "decoding"
        and found["draft"]["kind"] == "best" and fails(found).failed
    )  # fmt: skip
    smaller, outcome = shrink(whole, fails(whole), fails)
    assert outcome.failed
    assert smaller["draft"]["kind"] == "lookahead" and smaller["settings"].keys() == {"seed"}
    assert [len(prompt) <= 1 for prompt in smaller["prompts"]] == [True]


def test_wrong_scales_and_forgotten_adapters_are_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzz.checks import check
    from fuzz.failures import Failure
    from specdec.decoding import request
    from specdec.models.checkpoints import peft_folder

    adapter = {"fields": {"r": 3, "lora_alpha": 6}, "modules": ["model.layers.0.mlp.up_proj"], "seed": 1}
    folders = {
        "check": "peft", "architecture": "LlamaForCausalLM", "adapters": [adapter], "dtype": "f32",
        "prompts": [[3, 4]], "settings": {},
    }  # fmt: skip
    texts = {
        "check": "decoding", "target": {"spread": 0.6}, "models": {}, "draft": {"kind": "random"},
        "prompts": [[3, 4]] * 2, "settings": {"logits": True, "max_new_tokens": 3}, "adapters": [None, {}],
    }  # fmt: skip
    assert check(folders) == check(texts) == "passed"
    with monkeypatch.context() as broken:
        broken.setattr(peft_folder, "_of_module", lambda *_: (3, "r"))
        with pytest.raises(Failure, match="logits of an adapter merged are .* off PEFT's sum"):
            check(folders)
    monkeypatch.setattr(request, "adapted_models", lambda *_, **__: None)
    with pytest.raises(Failure, match="logprobs are not those"):
        check(texts)


@pytest.mark.parametrize(
    ("architecture", "modules"),
    [
        ("CohereForCausalLM", ["mlp.gate_proj", "self_attn.q_proj"]),  # one norm for two blocks
        ("CohereForCausalLM", ["self_attn.k_proj"]),
        ("PhiForCausalLM", ["mlp.fc1", "self_attn.v_proj"]),
        ("GPTNeoXForCausalLM", ["attention.query_key_value", "mlp.dense_h_to_4h"]),  # two norms
        ("Phi3ForCausalLM", ["self_attn.qkv_proj", "mlp.gate_up_proj"]),
        ("GPT2LMHeadModel", ["attn.c_attn", "attn.c_proj", "mlp.c_proj"]),
    ],
)
def test_adapters_of_families_are_their_sums(architecture: str, modules: list[str]) -> None:
    """What `test_peft.py` shows beside PEFT, here beside sums in NumPy."""
    from fuzz.checks import check
    from fuzz.peft_folders import module_shapes

    chosen = [name for name in module_shapes(architecture) if name.endswith(tuple(modules))]
    assert len(chosen) == 2 * len(modules)
    adapter = {"fields": {"r": 3, "lora_alpha": 9}, "modules": chosen, "seed": 2}
    prompts = [[3, 4, 5, 6], [7]]
    case = {"check": "peft", "architecture": architecture, "adapters": [adapter], "dtype": "f32"}
    assert check(case | {"prompts": prompts, "settings": {}}) == "passed"


@pytest.mark.parametrize("what", ["decoding", "engine", "law", "beams", "peft"])
def test_adapters_are_left_out_where_they_make_no_difference(what: str) -> None:
    from fuzz.failures import Outcome
    from fuzz.shrinking import shrink
    from fuzz.worlds import case

    whole = next(
        found for i in range(3000) if (found := case(1, i))["check"] == what
        and ({"adapter", "adapters"} & found.keys())
    )  # fmt: skip
    smaller, _ = shrink(
        whole,
        Outcome("difference", "always the same", whole),
        lambda one: Outcome("difference", "always the same", one),
    )
    assert len(smaller.get("adapters", ())) == (what == "peft") and "adapter" not in smaller
    assert what != "engine" or len(smaller["requests"]) == 1


def test_exact_binomial_tails() -> None:
    from scipy import stats

    from fuzz.laws import lower, tail

    for n, p in ((1, 0.5), (600, 0.01), (600, 0.4), (10_000, 0.97), (10_000, 1e-6)):
        for k in {0, 1, n // 3, round(n * p), round(n * p) + 3, n}:
            assert tail(n, p, k) == pytest.approx(stats.binom.sf(k - 1, n, p), rel=1e-6, abs=1e-12)
            assert lower(n, p, k) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-6, abs=1e-12)


def test_the_law_behind_a_prompt_in_tiles_is_that_of_decoded_tokens() -> None:
    """In int8 the two may be far apart: decoding rounds activations to eight bits, tiles to bf16."""
    from fuzz.checks import check

    target = {
        "n_vocab": 6, "n_ctx": 24, "n_layer": 4, "d_head": 2, "d_model": 46, "d_ff": 4, "weights": 313598,
        "dtype": "int8", "prefill": "tiles", "spread": 0.3,
        "experts": {
            "n_experts": 3, "n_experts_per_token": 2, "d_expert": 11, "d_shared_expert": 5,
            "router": "softmax_chosen", "router_bias": False, "router_renormalise": False,
            "routed_scale": 2.5, "mixtures": [1, 1, 1, 1], "shared_expert_gate": True,
        },
    }  # fmt: skip
    found = {
        "check": "law", "target": target, "models": {}, "draft": {"kind": "skip", "attn": [1], "mlp": [2]},
        "prompt": [4, 4, 1, 1], "length": 2, "settings": {"temperature": 1.0, "seed": 3}, "alarm": 1e-3,
    }  # fmt: skip
    assert check(found) == "passed"


def test_the_makefile_has_the_options() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^fuzz:\n((?:\t.*\n)+)", text, re.MULTILINE)
    for name in ("CONFIGURATIONS", "FILES", "SEED", "MINUTES", "PROCESSES"):
        assert name in recipe


def test_a_cut_between_tokens_that_rounding_swaps_is_noticed() -> None:
    """Two tokens a last bit apart are equal for the core, which keeps the lower id, not for the reference."""
    from fuzz.settings import distribution_after, hangs_on_rounding
    from specdec import _core

    near = np.array([-3.0, 2e-3, np.nextafter(np.float32(2e-3), np.float32(1.0)), -1.0], np.float32)
    apart = np.array([-3.0, 2e-3, 2.1e-3, 2e-3], np.float32)
    for cut in ({"top_k": 1}, {"top_p": 0.4}):
        settings = {"temperature": 1.0, **cut}
        assert hangs_on_rounding(settings, near, [0], 1) and not hangs_on_rounding(settings, apart, [0], 1), (
            cut
        )
        found = [_core.distribution(near, **settings), distribution_after(settings, near, [0], 1)]
        assert [each.argmax() for each in found] == [1, 2]
    assert hangs_on_rounding({"temperature": 1.0, "min_p": 1.0}, near, [0], 1)
    for settings in ({"temperature": 1.0, "top_k": 2}, {"temperature": 1.0}, {"top_k": 1}):
        assert not hangs_on_rounding(settings, near, [0], 1), settings
    equal = np.array([1.0, 2.0, 2.0], np.float32)
    assert not hangs_on_rounding({"temperature": 1.0, "top_k": 1}, equal, [0], 1)
