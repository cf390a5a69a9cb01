"""Vocabularies that memcore ships, and their reader.

``scripts/make_vocab`` makes the files and proves their source; NOTICE says whose they are. Nothing
is ever fetched. An encoding is made when it is first asked for, and kept.
"""

from __future__ import annotations

import os
from mmap import ACCESS_READ, mmap
from struct import Struct
from typing import Final

from xxhash import xxh3_64

from memcore._fast import Encoding
from memcore.errors import CounterUnavailableError, InvalidOptionError

__all__ = [
    "NAMES",
    "load",
]


NAMES: Final = ("o200k_base", "cl100k_base")
_HEADER: Final = Struct("<8sI12sQ")
"""Magic, version, three numbers, and the checksum of those numbers and of what follows."""

_encodings: dict[str, Encoding] = {}
"""Encodings made so far. No lock guards it: the child of a fork would wait for ever for one that a
thread of its parent held. Two threads may both make an encoding; one of the two is kept."""


def load(name: str) -> Encoding:
    """The encoding of that name.

    Raises:
        InvalidOptionError: memcore ships no such encoding.
        CounterUnavailableError: its file cannot be read or is damaged.
    """
    found = _encodings.get(name)
    if found is None:
        if name not in NAMES:
            msg = f"no encoding is named {name!r}; memcore ships {' and '.join(NAMES)}"
            raise InvalidOptionError(msg)
        vocabulary, classes = _read(f"{name}.bin"), _read("classes.bin")
        # Others may have made it while this thread waited for the files.
        found = _encodings.get(name) or _encodings.setdefault(
            name, _made(name, vocabulary, classes)
        )
    return found


def _made(name: str, vocabulary: mmap, classes: mmap) -> Encoding:
    try:
        return Encoding(vocabulary, classes[:])
    except ValueError as exc:
        raise _damaged(f"{name}.bin", str(exc)) from exc


def _read(file: str) -> mmap:
    """A file, mapped: what is not needed of it takes no memory, and processes share the rest."""
    try:
        with open(os.path.join(os.path.dirname(__file__), file), "rb") as opened:
            content = mmap(opened.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as exc:  # an empty one cannot be mapped
        raise _damaged(file, str(exc)) from exc
    if len(content) < _HEADER.size:
        raise _damaged(file, f"it has {len(content)} bytes")
    _, _, numbers, digest = _HEADER.unpack_from(content)
    found = xxh3_64(numbers)
    with memoryview(content) as whole, whole[_HEADER.size :] as rest:
        found.update(rest)
    if found.intdigest() != digest:
        raise _damaged(file, "its checksum is wrong")
    return content


def _damaged(file: str, why: str) -> CounterUnavailableError:
    msg = f"the vocabulary file {file} of memcore is damaged ({why}): install memcore again"
    return CounterUnavailableError(msg)
