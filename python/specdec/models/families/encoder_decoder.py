"""What the families with an encoder share: names of tensors, and which of their tables are one."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from specdec.models.families.family import ENCODER, Named

__all__ = ["of_encoder", "settle_tables", "with_encoder"]


def of_encoder(table: Mapping[str, Named]) -> dict[str, Named]:
    """Entries of an encoder's tensors: those of a table, under the names of an encoder."""
    return {ENCODER + name: entry for name, entry in table.items()}


def with_encoder(decoder: dict[str, Any], encoder: dict[str, Any], *, shared: bool = True) -> dict[str, Any]:
    """The canonical configuration of a decoder that attends to an encoder's output.

    ``shared``: both embed by one token table.
    """
    return decoder | {"encoder": encoder | {"tied": False, "shared_embedding": shared}}


def settle_tables(
    config: dict[str, Any], tensors: MutableMapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """The configuration whose tables and head are those that the files hold.

    A file names up to four: the shared table, one of each side, and the head. As in transformers, a table
    that is there counts, and one that is not is the shared one. Afterwards the decoder's table has the name
    of the shared one; the encoder's and the head have theirs where they differ from it.

    Parameters
    ----------
    config : dict
        The canonical configuration that config.json means.
    tensors : mapping of str to StoredTensor
        By the names of the family's table; changed.
    prefix : str
        Of the names of tables.
    """
    shared_name, head_name = f"{prefix}shared.weight", "lm_head.weight"
    encoder_name = f"{prefix}encoder.embed_tokens.weight"
    shared = tensors.pop(shared_name, None)
    ours = tensors.pop(f"{prefix}decoder.embed_tokens.weight", shared)
    theirs = tensors.pop(encoder_name, shared)
    head = tensors.pop(head_name, None)
    if ours is None and config["tied"]:
        ours = head
    if ours is not None:
        tensors[shared_name] = ours
    own_table = theirs is not None and not _same(theirs, ours)
    if own_table:
        tensors[encoder_name] = theirs
    own_head = head is not None and not _same(head, ours)
    if own_head:
        tensors[head_name] = head
    tied = not own_head and (config["tied"] or head is not None)
    encoder = config["encoder"] | {"shared_embedding": not own_table}
    return config | {"encoder": encoder, "tied": tied}


def _same(one: Any, other: Any) -> bool:
    return one is other or (other is not None and one.same_as(other))
