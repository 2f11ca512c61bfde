"""``generation_config.json``: BOS, EOS and the authors' default sampling settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specdec.errors import UnusedFieldWarning, warn
from specdec.fields import MAX_INT, Fields, as_json, is_finite, read_json_object

FILE: Final = "generation_config.json"

# Settings that `specdec.Sampling` has too: largest value (an int for integer settings), neutral value.
_SAMPLING: Final[Mapping[str, tuple[float, float | None]]] = {
    "temperature": (1e30, None), "top_k": (MAX_INT, 0), "top_p": (1.0, 1.0), "min_p": (1.0, 0.0),
    "repetition_penalty": (1e30, 1.0), "no_repeat_ngram_size": (MAX_INT, 0), "min_new_tokens": (MAX_INT, 0),
}  # fmt: skip
# Settings that apply to greedy decoding too.
_ALWAYS: Final = ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens")
_NAMES: Final = {"min_new_tokens": "min_tokens"}  # names that differ in `specdec.Sampling`
_LARGEST: Final = 3.4e38  # a bias in float32

# Fields of transformers without counterpart here (`min_length` counts the prompt): their neutral values.
_UNAPPLIED: Final[Mapping[str, tuple[Any, ...]]] = {
    "begin_suppress_tokens": ([],), "constraints": ([],), "diversity_penalty": (0,), "dola_layers": ([],),
    "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (), "force_words_ids": ([],), "forced_eos_token_id": (),
    "guidance_scale": (1,), "max_time": (), "min_length": (0,), "num_beam_groups": (1,), "num_beams": (1,),
    "penalty_alpha": (0,), "stop_strings": ([], ""), "token_healing": (False,), "watermarking_config": ({},),
}  # fmt: skip
_UNAPPLIED_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": (1,), "typical_p": (1,),
}  # fmt: skip
"""The same for fields that matter only with sampling."""

# Fields that do not change the output: limits from the caller, caches, speculation, return values; and beam
# settings, as `num_beams` has a warning of its own.
_HARMLESS: Final = """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind cache_config cache_implementation chat_format compile_config
    continuous_batching_config disable_compile do_sample early_stopping is_assistant length_penalty
    low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_window_size
    num_assistant_tokens num_assistant_tokens_schedule num_return_sequences output_attentions
    output_hidden_states output_logits output_scores pad_token_id prefill_chunk_size
    prompt_lookup_num_tokens remove_invalid_values renormalize_logits return_dict_in_generate
    return_legacy_cache speculation_type target_lookbehind transformers_version use_cache use_mtp
    """.split()

GENERATION_FIELDS: Final = frozenset(_HARMLESS).union(
    _SAMPLING, _UNAPPLIED, _UNAPPLIED_SAMPLING,
    ("bad_words_ids", "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
     "sequence_bias", "suppress_tokens"),
)  # fmt: skip
"""Every field of a generation_config.json; a config.json may have them too."""

NOT_APPLIED: Final = "without effect: specdec does not support this generation setting"
"""Reason in the warning about an unsupported setting."""


@dataclass(frozen=True)
class GenerationDefaults:
    """Generation settings of a folder; `eos_ids` is None if no file names them.

    `decoder_start`: Initial ids of an encoder-decoder's output: ``decoder_start_token_id`` or
    ``bos_token_id``, then ``forced_bos_token_id``; empty without the first.
    """

    bos_id: int | None
    eos_ids: tuple[int, ...] | None
    sampling: Mapping[str, Any]
    decoder_start: tuple[int, ...] = ()


def read_generation_defaults(
    folder: Path, config: Fields, n_vocab: int, *, has_encoder: bool = False, ids_only: bool = False
) -> GenerationDefaults:
    """Read generation_config.json, else config.json, and ids from both; with `ids_only` without warnings."""
    file = folder / FILE
    has_file = file.is_file()
    given = Fields(read_json_object(file) if has_file else {}, file)
    sources = [given, config]
    outside: list[str] = []

    def first(name: str) -> tuple[int, ...]:
        return next((ids for source in sources if (ids := source.token_ids(name, n_vocab, outside))), ())

    bos, eos = first("bos_token_id"), first("eos_token_id") or None
    start, forced = (first("decoder_start_token_id") or bos)[:1], first("forced_bos_token_id")[:1]
    sampling: dict[str, Any] = {}
    if not ids_only:
        of_texts = given if has_file else config
        unapplied: list[str] = []
        sampling = sampling_of(of_texts, len(forced) if has_encoder and start else 0)
        sampling |= _by_token(of_texts, n_vocab, eos or (), sampling, outside, unapplied)
        if outside:
            fields = ", ".join(dict.fromkeys(outside))  # both files often agree
            warn(f"{folder}: {fields}; expected ids from 0 to {n_vocab - 1}; ignoring the others")
        neutral = dict(_UNAPPLIED)
        if of_texts.raw("do_sample") is True:
            neutral |= _UNAPPLIED_SAMPLING
        if not has_encoder:
            neutral["forced_bos_token_id"] = ()  # after a prompt of one token
        unapplied += [name for name in neutral if of_texts.raw(name) not in (None, *neutral[name])]
        if unapplied:
            warn(UnusedFieldWarning(of_texts.file, unapplied, NOT_APPLIED))
        given.warn_of_unread(GENERATION_FIELDS)
    return GenerationDefaults(bos[0] if bos else None, eos, sampling, (*start, *forced) if start else ())


def _by_token(
    given: Fields, n_vocab: int, eos_ids: tuple[int, ...], sampling: Mapping[str, Any], outside: list[str],
    unapplied: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Return ``logit_bias`` and ``bad_words`` of banned or biased tokens; add others to `unapplied`."""
    biased, others = _words(given.raw("sequence_bias"), n_vocab, with_bias=True)
    biases = {word[0]: bias for word, bias in biased.items() if len(word) == 1}
    if biases and "repetition_penalty" in sampling:
        biases, others = {}, True
    if others or any(len(word) > 1 for word in biased):
        unapplied.append("sequence_bias")
    words, others = _words(given.raw("bad_words_ids"), n_vocab)
    if others:
        unapplied.append("bad_words_ids")
    # EOS stays allowed, as in transformers.
    forbidden = [word[0] for word in words if len(word) == 1 and word[0] not in eos_ids]
    forbidden += given.token_ids("suppress_tokens", n_vocab, outside)
    biases.update(dict.fromkeys(forbidden, -math.inf))
    longer = [list(word) for word in words if len(word) > 1]
    return {name: value for name, value in (("logit_bias", biases), ("bad_words", longer)) if value}


def _words(given: Any, n_vocab: int, with_bias: bool = False) -> tuple[dict[tuple[int, ...], float], bool]:
    """Return tokens and biases of ``bad_words_ids`` or ``sequence_bias``, and whether others are invalid."""
    found: dict[tuple[int, ...], float] = {}
    others = given is not None and not isinstance(given, list)
    for entry in given if isinstance(given, list) else ():
        word, bias = entry if with_bias and isinstance(entry, list) and len(entry) == 2 else (entry, 0.0)
        are_ids = isinstance(word, list) and word and all(type(token) is int and token >= 0 for token in word)
        if not are_ids or type(bias) not in (int, float) or not -_LARGEST <= bias <= _LARGEST:
            others = True
        elif all(token < n_vocab for token in word):
            found[tuple(word)] = float(bias)
    return found, others


def sampling_of(given: Fields, n_forced: int = 0) -> dict[str, Any]:
    """Return the sampling settings of a file; ``min_new_tokens`` includes `n_forced` initial tokens."""

    def leave_out(name: str, value: Any, expected: str) -> None:
        warn(f"{given.file}: field '{name}' is {as_json(value)}; expected {expected}; ignoring it")

    samples = given.raw("do_sample")
    if not isinstance(samples, bool | None):
        leave_out("do_sample", samples, "true or false")
    samples = samples is True
    found: dict[str, Any] = {"temperature": 1.0} if samples else {}
    for name, (most, neutral) in _SAMPLING.items():
        value = given.raw(name)
        if value is None or not (samples or name in _ALWAYS):
            continue
        whole, least = isinstance(most, int), 0 if neutral == 0 else 1e-30
        is_number = is_finite(value) and (isinstance(value, int) or not whole)
        if not (is_number and least <= value <= most):
            leave_out(name, value, f"a {'whole ' if whole else ''}number from {least} to {most}")
        elif value != neutral:
            found[_NAMES.get(name, name)] = value if whole else float(value)
    n_least = found.pop("min_tokens", 0) - n_forced
    return found | ({"min_tokens": n_least} if n_least > 0 else {})
