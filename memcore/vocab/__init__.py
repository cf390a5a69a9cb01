"""Vocabularies shipped with memcore, and their reader.

``scripts/make_vocab`` builds the files and verifies their source; NOTICE states their origin.
Nothing is ever downloaded. Encodings are built on first use and cached.
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
"""Magic, version, three numbers, and the checksum of those numbers and of the rest of the file."""

_encodings: dict[str, Encoding] = {}
"""Encodings built so far. There is no lock: after a fork, the child would wait forever for one held
by a thread of its parent. Two threads may both build an encoding; one of the two is kept."""


def load(name: str) -> Encoding:
    """Return an encoding by name.

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
        # Another thread may have built it while this one waited for the files.
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
    """Map a file and verify it: untouched pages take no memory, and processes share the others."""
    try:
        with open(os.path.join(os.path.dirname(__file__), file), "rb") as opened:
            content = mmap(opened.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as exc:  # an empty file cannot be mapped
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
