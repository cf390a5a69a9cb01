"""What a salvage cannot bring back of entries and fields: their rows are there, but damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from memcore import keys
from memcore.database.sieve import Sieve
from memcore.errors import CorruptValueError
from memcore.keys import Kind, Row

__all__ = ["lost_entries"]

_KV_PREFIX_BYTES: Final = 17
_STATE_ROW: Final = bytes((Row.STATE,))


def lost_entries(sieve: Sieve) -> Iterator[str]:
    """Key/value entries and fields of states whose row is there, but damaged."""
    for key in sieve.wreck.damaged:
        if key[0] == Kind.SESSION and key not in sieve.chosen and key[17:18] == _STATE_ROW:
            place = keys.split_session_prefix(key)
            with suppress(CorruptValueError):
                field, counter = keys.split_state_row(key)
                where = sieve.names.get(place, f"number {place[1]}")
                what = f"field {field!r} (counter {counter}) of the state of session {where!r}"
                yield f"{what}, as far as it reads"
        if key[0] == Kind.KV and key not in sieve.chosen and len(key) > _KV_PREFIX_BYTES:
            place = keys.split_session_prefix(key)
            name = key[_KV_PREFIX_BYTES:]
            with suppress(CorruptValueError):
                where = sieve.namespaces.get(place, f"number {place[1]}")
                yield f"entry {keys.unpack_text(name)!r} of namespace {where!r}, as far as it reads"
