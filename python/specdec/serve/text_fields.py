"""The fields that all requests for text have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from specdec.checks import as_integer
from specdec.decoding.engine import Speculative
from specdec.decoding.options import LogprobsOf
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import shown
from specdec.serve.given_fields import GivenFields
from specdec.serve.server_limits import ServerLimits
from specdec.serve.service import Service
from specdec.serve.text_parts import required_text_of_parts
from specdec.verification.rules import DECODING_RULES

__all__ = ["NO_EFFECT", "PLAIN_WORDS", "TextFields", "check_prompt_size", "read_model", "read_text_fields"]

NO_EFFECT: Final = (
    "user", "metadata", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "safety_identifier",
)  # fmt: skip
"""Fields that are taken and say nothing about the text."""

PLAIN_WORDS: Final = ("none", "plain")
"""Words by which a request asks for no draft."""

_PENALTY: Final = 2.0
_BIAS: Final = 100.0


@dataclass(frozen=True)
class TextFields:
    """What a request says about each of its texts.

    Attributes
    ----------
    options : dict
        Keyword arguments of `Engine.submit`.
    n : int
        Samples of each prompt.
    stream : bool
    include_usage : bool
        Whether a stream ends with the usage.
    """

    options: dict[str, Any]
    n: int = 1
    stream: bool = False
    include_usage: bool = False


def read_model(fields: GivenFields, names: Sequence[str]) -> str:
    """The model that a request names, which must be the one that is served; without a name it is meant.

    Raises
    ------
    RequestError
        With status 404 for another one.
    """
    name = fields.text("model")
    if name is None:
        return names[0]
    if name not in names:
        refusal = fields.refusal(
            "model",
            f"the model {shown(name)} is not served here; expected {' or '.join(map(repr, names))}",
            "model_not_found",
        )
        refusal.status = 404
        raise refusal
    return name


def check_prompt_size(
    fields: GivenFields, parts: Mapping[str, Any], service: Service, most: int | None = None
) -> None:
    """Refuse what is too long to be encoded.

    Parameters
    ----------
    fields : GivenFields
    parts : mapping of str to object
        What the prompt is made of, by field: a text, a conversation, tools, variables of a template.
    service : Service
    most : int, optional
        Bytes of all parts together; None: as many as a prompt may have.

    Raises
    ------
    RequestError
        The parts have more bytes; it names the largest field.
    """
    sizes = {field: _n_bytes(part) for field, part in parts.items()}
    n_bytes, reason = sum(sizes.values()), ""
    if most is None:
        most, longest = service.most_bytes, service.longest_token
        reason = f": a text has at most {service.engine.n_text} tokens, of at most {longest} bytes each"
    if n_bytes > most:
        field = max(sizes, key=lambda name: sizes[name])
        names = [fields.path(name) for name, size in sizes.items() if size]
        raise fields.refusal(
            field,
            f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} {n_bytes} bytes of text; expected "
            f"at most {most}{reason}",
            "context_length_exceeded",
        )


def _n_bytes(value: Any) -> int:
    """Bytes of a value as text in UTF-8; of an object or a list, the sum over its names and items."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return sum(_n_bytes(name) + _n_bytes(inner) for name, inner in value.items())
    return sum(map(_n_bytes, value)) if isinstance(value, list) else len(str(value))


def read_text_fields(
    fields: GivenFields,
    service: Service,
    *,
    limit_names: Sequence[str],
    default_limit: int | None,
    least: int,
    samples: bool,
) -> TextFields:
    """Read the fields that all requests for text have.

    Parameters
    ----------
    fields : GivenFields
    service : Service
    limit_names : sequence of str
        What the field for the number of new tokens is called; several names of one thing.
    default_limit : int or None
        New tokens where it is not given.
    least : int
        The smallest number of new tokens.
    samples : bool
        Whether the request has `n`.

    Raises
    ------
    RequestError
    """
    limits = service.limits
    options = _sampling(fields, limits, service.sampling)
    options["max_new_tokens"] = _limit(fields, limits, limit_names, default_limit, least)
    options["seed"] = _seed(fields)
    options["stop"] = _stops(fields, limits)
    options["ignore_eos"] = fields.flag("ignore_eos")
    options["logprobs_of"] = fields.choice("logprobs_of", get_args(LogprobsOf)) or "model"
    options["speculative"] = _speculative(fields, service)
    options["prediction"] = _prediction(fields, options["speculative"])
    check_prompt_size(fields, {"prediction": options["prediction"] or ""}, service)
    fields.without_effect(NO_EFFECT)
    fields.only("service_tier", "auto", "default", why="there is one way in which texts are served")
    fields.only("store", False, why="nothing is stored")
    fields.only("cache_prompt", True, why="what was read of earlier texts is used, which changes no text")
    n = (fields.integer("n", 1, limits.n_texts) or 1) if samples else 1
    stream = fields.flag("stream")
    given = fields.inner("stream_options")
    include_usage = False
    if given is not None:
        if not stream:
            raise fields.refusal(
                "stream_options", "stream_options is given, but stream is not true; expected both"
            )
        include_usage = given.flag("include_usage")
        given.only("include_obfuscation", False, why="chunks are not padded")
        given.only("continuous_usage_stats", False, why="the usage comes in the last chunk")
        given.finish()
    return TextFields(options, n, stream, include_usage)


def _sampling(fields: GivenFields, limits: ServerLimits, sampling: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": 1.0, **sampling}
    top_k = fields.value("top_k")
    given = {
        "temperature": fields.number("temperature", 0.0, 1e6),
        "top_p": fields.number("top_p", 1e-9, 1.0),
        "min_p": fields.number("min_p", 0.0, 1.0),
        "top_k": None if top_k is None else fields.integer("top_k", -1, 2**31 - 1),
        "repetition_penalty": fields.number("repetition_penalty", 1e-30, 1e30),
        "presence_penalty": fields.number("presence_penalty", -_PENALTY, _PENALTY),
        "frequency_penalty": fields.number("frequency_penalty", -_PENALTY, _PENALTY),
        "logit_bias": _biases(fields, limits),
    }
    found.update({name: value for name, value in given.items() if value is not None})
    if found.get("top_k") in (-1, 0):  # what other servers call no bound
        found["top_k"] = None
    return found


def _biases(fields: GivenFields, limits: ServerLimits) -> dict[int, float] | None:
    given = fields.whole("logit_bias")
    if given is None:
        return None
    if len(given) > limits.n_biases:
        raise fields.refusal(
            "logit_bias", f"logit_bias has {len(given)} tokens; expected at most {limits.n_biases}"
        )
    inner, found = GivenFields(given, "logit_bias"), {}
    for name in given:
        token = int(name) if name.isascii() and name.isdecimal() and len(name) < 10 else None
        if token is None:
            raise fields.refusal("logit_bias", f"logit_bias has {shown(name)}; expected token ids as strings")
        found[token] = inner.number(name, -_BIAS, _BIAS) or 0.0
    return found


def _limit(
    fields: GivenFields, limits: ServerLimits, names: Sequence[str], default: int | None, least: int
) -> int | None:
    given = {
        name: number
        for name in names
        if (number := fields.integer(name, least, limits.n_new_tokens)) is not None
    }
    if len(set(given.values())) > 1:
        raise fields.refusal(
            names[0],
            f"{' and '.join(given)} are {' and '.join(map(str, given.values()))}; expected one of them",
        )
    if given:
        return next(iter(given.values()))
    bounds = [bound for bound in (default, limits.n_new_tokens) if bound is not None]
    return min(bounds) if bounds else None


def _seed(fields: GivenFields) -> int | None:
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    return None if seed is None else seed % 2**64


def _stops(fields: GivenFields, limits: ServerLimits) -> list[str | int]:
    given = fields.value("stop")
    expected = "a string, or a list of strings"
    strings = (
        [given] if isinstance(given, str) else fields.items("stop", limits.n_stops, expected=expected) or []
    )
    for i, string in enumerate(strings):
        if not isinstance(string, str) or not string:
            name = "stop" if isinstance(given, str) else f"stop[{i}]"
            raise fields.refusal(
                "stop", f"{name} is {shown(string)}; expected a string of at least one character"
            )
    ids = fields.items("stop_token_ids", limits.n_stops) or []
    for i, token in enumerate(ids):
        if as_integer(token) is None:
            raise fields.refusal(
                "stop_token_ids", f"stop_token_ids[{i}] is {shown(token)}; expected a token id"
            )
    return [*strings, *ids]


def _speculative(fields: GivenFields, service: Service) -> Speculative | None:
    given = fields.inner("speculative")
    if given is None:
        return None
    wanted, names = given.value("draft"), service.draft_names
    expected = ", ".join(["true"] * bool(names) + ["false", repr(PLAIN_WORDS[0])])
    expected += f" or {' or '.join(map(repr, names))}" if names else ""
    if wanted is not None and not isinstance(wanted, bool) and wanted not in (*PLAIN_WORDS, *names):
        raise given.wrong("draft", expected)
    drafting = wanted not in (False, *PLAIN_WORDS)
    if drafting and wanted is not None and not names:
        raise given.refusal(
            "draft",
            f"{given.path('draft')} is {shown(wanted)}, but this server has no draft; expected {expected}",
        )
    gamma = given.integer("gamma", 0, MAX_GAMMA)
    verify: Any = given.choice("verify", DECODING_RULES)
    given.finish()
    draft = wanted if isinstance(wanted, str) and wanted in service.engine.drafts else drafting
    return Speculative(draft=draft, gamma=gamma, verify=verify)


def _prediction(fields: GivenFields, speculative: Speculative | None) -> str | None:
    given = fields.inner("prediction")
    if given is None:
        return None
    given.required("type", "'content'")
    given.choice("type", ("content",))
    text = required_text_of_parts(given, "content")
    given.finish()
    if speculative is not None and not speculative.draft:
        raise fields.refusal(
            "prediction", "prediction is given, but speculative.draft asks for no draft; expected one of them"
        )
    return text or None
