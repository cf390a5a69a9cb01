"""Vocabularies shipped with memcore, and their reader.

``scripts/make_vocab`` builds the files and verifies their source; NOTICE states their origin.
Nothing is ever downloaded. Encodings are built on first use and cached.
"""

from __future__ import annotations

import os
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from struct import Struct
from typing import Final

from memcore._fast import Encoding, xxh3_64
from memcore.errors import CounterUnavailableError, InvalidOptionError

__all__ = [
    "NAMES",
    "load",
]


NAMES: Final = ("o200k_base", "cl100k_base")
_HEADER: Final = Struct("<8s4IQ")
"""Magic, version, three numbers, and the checksum of those numbers and of the rest of the file."""
_NUMBERS: Final = slice(12, 24)
_CHUNK_BYTES: Final = 1 << 16
"""Bytes hashed at a time: XXH3 of a chunk, seeded with the hash of what precedes it."""

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
        made = Encoding(vocabulary, classes[:])
    except ValueError as exc:
        raise _damaged(f"{name}.bin", str(exc)) from exc
    # Building read every token. Counting reads few: the others' pages need not stay resident.
    vocabulary.madvise(MADV_DONTNEED)
    return made


def _read(file: str) -> mmap:
    """Map a file and verify it: untouched pages take no memory, and processes share the others."""
    try:
        with open(os.path.join(os.path.dirname(__file__), file), "rb") as opened:
            content = mmap(opened.fileno(), 0, access=ACCESS_READ)
            head = opened.read(_HEADER.size)
            # Read, not hashed through the map: that would make every page of it resident.
            found = xxh3_64(head[_NUMBERS])
            while chunk := opened.read(_CHUNK_BYTES):
                found = xxh3_64(chunk, found)
    except (OSError, ValueError) as exc:  # an empty file cannot be mapped
        raise _damaged(file, str(exc)) from exc
    if len(head) < _HEADER.size:
        raise _damaged(file, f"it has {len(content)} bytes")
    if found != _HEADER.unpack(head)[-1]:
        raise _damaged(file, "its checksum is wrong")
    return content


def _damaged(file: str, why: str) -> CounterUnavailableError:
    msg = f"the vocabulary file {file} of memcore is damaged ({why}): install memcore again"
    return CounterUnavailableError(msg)
