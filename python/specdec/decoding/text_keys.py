"""The keys (seed, sequence) that random numbers of texts are made of."""

from __future__ import annotations

import secrets
import struct
from hashlib import blake2b
from typing import Any

import numpy as np

from specdec.checks import check_integer, check_items
from specdec.drafts.draft import Draft
from specdec.errors import InputError, number_of, shown
from specdec.verification.rules import Rule


def seeds_of(seed: Any, n_sequences: int) -> list[tuple[int, int]]:
    """The keys (seed, sequence) of a call's texts, from what the caller gave."""
    if seed is None:
        seed = secrets.randbits(63)
    if not isinstance(seed, list | tuple | np.ndarray):
        number = check_integer("seed", seed, 0, 2**64 - 1)
        return [(number, i) for i in range(n_sequences)]
    entries = check_items("seed", seed, "an integer, or a list with an entry for each prompt")
    if len(entries) != n_sequences:
        raise InputError(
            f"seed has {len(entries)} entries for {number_of(n_sequences, 'text')}; expected one for each "
            "prompt, or sample"
        )
    keys = []
    for i, entry in enumerate(entries):
        key = (entry, 0)
        if isinstance(entry, list | tuple | np.ndarray):
            key = tuple(check_items(f"seed[{i}]", entry, "an integer or a pair (seed, sequence)"))
        if len(key) != 2:
            raise InputError(f"seed[{i}] is {shown(entry)}; expected an integer or a pair (seed, sequence)")
        number = check_integer(f"seed[{i}]", key[0], 0, 2**64 - 1)
        keys.append((number, check_integer(f"sequence of seed[{i}]", key[1], 0, 2**32 - 1)))
    return keys


def text_key(seed: tuple[int, int], draft: Draft | None, rule: Rule) -> tuple[int, int]:
    """The key (seed, sequence) of the random numbers of a text that begins.

    With a draft that remembers earlier texts it is one that none of them had (`Draft.text_key`). Under
    the coupled rule the numbers are those of plain decoding: there the text is a function of them alone.
    """
    number, sequence = seed
    if draft is None or rule == "coupled" or not (key := draft.text_key()):
        return number, sequence
    digest = blake2b(struct.pack(f"<{len(key) + 1}Q", number, *key), digest_size=8).digest()
    return int.from_bytes(digest, "little"), sequence
