"""Inverted index of ADK memories in a key/value namespace: rows, postings, words.

- ``h``: the last ordinal assigned, and the number of memories;
- ``e<ordinal>``: a memory; large content is the entry's content;
- ``i<id><session>``: the ordinal of the memory with that id;
- ``d<id>``: a tombstone: memories with that id were deleted, and are not stored again;
- ``s<session>``: the watermark of a session: its leading events, all of which are stored;
- ``t<term><ordinal>``: the posting list of a term, in rows; terms are keyed digests in an
  encrypted file.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from math import isfinite
from struct import pack, unpack
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore.adapters.adk.commit import Content
from memcore.adapters.adk.events import read_known
from memcore.adapters.adk.names import END, label
from memcore.codec.values import decode_json, encode_json
from memcore.errors import CorruptValueError, InvalidItemError
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = [
    "Memory",
    "add_postings",
    "adding",
    "batches",
    "chars_of",
    "delete_memories",
    "drop_posting",
    "entry_at",
    "grams_in",
    "head_of",
    "is_known",
    "lowered",
    "memory_of",
    "postings_of",
    "query_words",
    "terms_of",
    "text_at",
    "word_term",
]


# --- Posting lists: an inverted index in the rows of a key/value namespace ------------------------
# A row holds up to 256 ordinals of memories in ascending order; a term has as many rows as it
# needs. The last one, which is appended to, has a fixed key; the key of a full one contains its
# first ordinal. A search therefore reads only the memories that it finds.

_TERM_BYTES_MAX: Final = 120
_ORDINAL_CHARS: Final = 8
_LAST: Final = "g"
"""Sorts after all ordinals, which are in hex digits."""
_ORDINAL_BYTES: Final = 4
_ROW_BYTES_MAX: Final = 256 * _ORDINAL_BYTES


def _prefix(view: KeyValueView, term: str) -> str:
    return "t" + label(view.veiled(term), _TERM_BYTES_MAX) + END


def _key(prefix: str, first: int) -> str:
    return f"{prefix}{first:0{_ORDINAL_CHARS}x}"


def add_postings(txn: KeyValueTxn, terms: Mapping[str, Iterable[int]]) -> None:
    """Append ordinals to terms, in ascending order and above all that a term already has."""
    for term, ordinals in terms.items():
        prefix = _prefix(txn, term)
        before = txn.get(prefix + _LAST, b"")
        _unpacked(before)
        rows = before + b"".join(pack("<I", each) for each in ordinals)
        while len(rows) > _ROW_BYTES_MAX:
            full, rows = rows[:_ROW_BYTES_MAX], rows[_ROW_BYTES_MAX:]
            txn.put(_key(prefix, _unpacked(full)[0]), full)
        txn.put(prefix + _LAST, rows)


def postings_of(view: KeyValueView, term: str) -> list[int]:
    """The ordinals of a term, ascending."""
    found: list[int] = []
    for _, row in view.scan(prefix=_prefix(view, term)):
        found += _unpacked(row)
    return found


def drop_posting(txn: KeyValueTxn, term: str, ordinal: int) -> None:
    """Remove an ordinal from a term."""
    prefix = _prefix(txn, term)
    key, row = prefix + _LAST, txn.get(prefix + _LAST, b"")
    if ordinal < next(iter(_unpacked(row)), ordinal + 1):
        stop = _key(prefix, ordinal) + END
        found = next(txn.scan(prefix, stop, prefix=prefix, reverse=True, limit=1), None)
        if found is None:
            return
        key, row = found
    left = [each for each in _unpacked(row) if each != ordinal]
    if left:
        txn.put(key, pack(f"<{len(left)}I", *left))
    else:
        txn.delete(key)


def _unpacked(row: object) -> tuple[int, ...]:
    if not isinstance(row, bytes) or len(row) % _ORDINAL_BYTES:
        msg = "a row of the index of memories is damaged; run 'memcore check'"
        raise CorruptValueError(msg, key=b"")
    return unpack(f"<{len(row) // _ORDINAL_BYTES}I", row)


# --- The words of a text, as ADK's InMemoryMemoryService matches them, and their index terms ------
# A word is a run of letters, digits and underscores of the text in NFC, lower-cased. A word that
# mixes Latin with other scripts is also indexed by its single-script runs. A word that is not all
# ASCII is also matched inside longer ones, because some languages are written without spaces; the
# index therefore has each of its non-ASCII characters, and each pair with one.

TEXT_CHARS_MAX: Final = 256 * 1024
"""Only this much of a longer text is searchable."""
_WORD: Final = re.compile(r"\w+")
_DOT_ABOVE: Final = "\u0307"
"""The combining dot in the lower case of a dotted capital I: the only non-letter in a word."""


def query_words(query: str) -> set[str]:
    """The words to search for."""
    text = unicodedata.normalize("NFC", query)
    return {word.lower() for word in _WORD.findall(text)}


def lowered(text: str) -> str:
    """The text normalized for matching words that are not all ASCII."""
    return unicodedata.normalize("NFC", text[:TEXT_CHARS_MAX]).lower()


def terms_of(text: str) -> set[str]:
    """All index terms of a text."""
    words = query_words(text[:TEXT_CHARS_MAX])
    for word in list(words):
        if not word.isascii():
            words.update("".join(run) for _, run in itertools.groupby(word, _is_latin))
    terms = {word_term(word) for word in words}
    low = lowered(text)
    if not low.isascii():
        terms |= _grams(low)
    return terms


def word_term(word: str) -> str:
    """The index term of a whole word."""
    return "w" + word


def grams_in(word: str) -> list[str]:
    """The terms that every text with the word has; exact for one or two characters."""
    return sorted(_grams(word) - {"g" + char for char in word if len(word) > 1})


def _grams(text: str) -> set[str]:
    """The terms of the non-ASCII characters, and of the pairs that contain one."""
    found: set[str] = set()
    before = ""
    for char in text:
        if not (char.isalnum() or char in ("_", _DOT_ABOVE)):
            before = ""
            continue
        if not char.isascii():
            found.add("g" + char)
        if before and not (char.isascii() and before.isascii()):
            found.add("g" + before + char)
        before = char
    return found


def _is_latin(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char == "_"
    return unicodedata.name(char, "").startswith("LATIN")


# --- Memories as rows of a key/value namespace ----------------------------------------------------

_ID_BYTES_MAX: Final = 200
_CONTENT_BYTES_MAX: Final = 8 * 1024
"""Content larger than this is not kept in its row."""
_ORDINALS: Final = 2**32
_BATCH: Final = 32
_BATCH_TERMS: Final = 2048
_BATCH_BYTES: Final = 1024**2


@dataclass(slots=True)
class Memory:
    """A memory to be stored."""

    id: str
    session: str
    """The session it came from; empty: none."""
    row: dict[str, Any]
    content: bytes | None
    """JSON of large content."""
    terms: set[str] = field(repr=False)
    replaces: bool = False
    """True if it replaces an existing one with the same id."""

    @classmethod
    def of_event(
        cls,
        event: Event,
        session: str,
        metadata: Mapping[str, Any] | None,
        *,
        secret: bytes = b"",
    ) -> Memory:
        """A memory of an event with content; without an id, it gets a digest keyed with ``secret``.

        Raises:
            InvalidItemError: the metadata is not JSON.
        """
        content = event.content or types.Content()
        # A non-finite time is dropped, because JSON cannot represent it.
        at, author = event.timestamp if isfinite(event.timestamp) else None, event.author
        told = metadata or {}
        return cls._of(
            content, event.id, session, author=author, at=at, metadata=told, secret=secret
        )

    @classmethod
    def of_entry(cls, entry: MemoryEntry, id_: str, metadata: Mapping[str, Any] | None) -> Memory:
        """A memory created by a caller; it replaces one with the same id.

        Raises:
            InvalidItemError: the metadata is not JSON.
        """
        told = {**(metadata or {}), **entry.custom_metadata}
        author, at = entry.author, entry.timestamp
        made = cls._of(entry.content, id_, "", author=author, at=at, metadata=told)
        made.replaces = True
        return made

    @classmethod
    def _of(
        cls,
        content: types.Content,
        id_: str,
        session: str,
        *,
        author: str | None,
        at: float | str | None,
        metadata: Mapping[str, Any],
        secret: bytes = b"",
    ) -> Memory:
        try:
            dumped = content.model_dump(mode="json", exclude_none=True)
            payload, flags = encode_json(dumped)
            told = to_jsonable_python(dict(metadata))
            encode_json(told)
        except (PydanticSerializationError, TypeError, ValueError) as error:
            msg = f"the memory {id_!r:.80} holds what is no JSON: {error}"
            raise InvalidItemError(msg) from error
        if not id_:
            said = repr((author, at)).encode() + payload
            id_ = blake2b(said, key=secret, digest_size=16).hexdigest()
        row: dict[str, Any] = {"id": id_, "session": session, "author": author, "at": at}
        if told:
            row["metadata"] = told
        terms = terms_of(text_of(content))
        if len(payload) > _CONTENT_BYTES_MAX:
            return cls(id_, session, {**row, "flags": flags}, payload, terms)
        return cls(id_, session, {**row, "content": dumped}, None, terms)


def memory_of(
    event: Event, session: str, metadata: Mapping[str, Any] | None, *, secret: bytes = b""
) -> Memory | None:
    """The memory of an event; None if it has no searchable text."""
    if event.content is None or not text_of(event.content):
        return None
    made = Memory.of_event(event, session, metadata, secret=secret)
    return made if made.terms else None


def text_of(content: types.Content) -> str:
    """The searchable text of a content."""
    return " ".join([part.text for part in content.parts or () if part.text])


def chars_of(content: types.Content | None) -> int:
    """The length of ``text_of`` in characters."""
    return 0 if content is None else sum(len(part.text or "") for part in content.parts or ())


def batches(memories: Sequence[Memory]) -> list[list[Memory]]:
    """Split memories into batches of one commit each."""
    found: list[list[Memory]] = []
    terms = size = 0
    for memory in memories:
        terms += len(memory.terms)
        size += len(memory.content or b"")
        full = terms > _BATCH_TERMS or size > _BATCH_BYTES or (found and len(found[-1]) == _BATCH)
        if not found or full:
            found.append([])
            terms, size = len(memory.terms), len(memory.content or b"")
        found[-1].append(memory)
    return found


# --- rows -----------------------------------------------------------------------------------------


def _entry(ordinal: int) -> str:
    return f"e{ordinal:08x}"


def _of_id(id_: str, session: str | None = None) -> str:
    """The key of an id's memory in a session.

    Without a session, the key prefix of the id.
    """
    start = "i" + label(id_, _ID_BYTES_MAX) + END
    return start if session is None else start + label(session, _ID_BYTES_MAX)


def _deleted(id_: str) -> str:
    return "d" + label(id_, _ID_BYTES_MAX)


def head_of(view: KeyValueView) -> tuple[int, int]:
    """``(last ordinal assigned, number of memories)``."""
    found = view.get("h", [0, 0])
    match found:
        case [int() as last, int() as count] if 0 <= count <= last < _ORDINALS - _BATCH:
            return last, count
        case _:
            raise _damaged("the count of memories")


def is_known(view: KeyValueView, id_: str, session: str) -> bool:
    """Return whether an event with that id is stored for that session, or was deleted."""
    return bool(id_) and (
        view.get(_of_id(id_, session)) is not None or view.get(_deleted(id_)) is not None
    )


def adding(batch: Sequence[Memory], contents: Sequence[Content]) -> Callable[[KeyValueTxn], int]:
    """The closure that stores a batch, with one content per memory.

    Returns the number of new memories; those already stored or deleted are skipped.
    """

    def closure(txn: KeyValueTxn) -> int:
        new: dict[str, tuple[Memory, Content]] = {}
        for memory, content in zip(batch, contents, strict=True):
            key = _of_id(memory.id, memory.session)
            if txn.get(_deleted(memory.id)) is not None:
                continue
            if memory.replaces or (txn.get(key) is None and key not in new):
                new[key] = memory, content
        last, count = head_of(txn)
        terms: defaultdict[str, list[int]] = defaultdict(list)
        # Staged contents first: if one is missing, nothing has been written yet.
        for ordinal, (memory, content) in enumerate(new.values(), last + 1):
            txn.put(_entry(ordinal), memory.row, content=content)
        for ordinal, (key, (memory, _)) in enumerate(new.items(), last + 1):
            before = txn.get(key)
            if before is not None:
                _remove(txn, before)
                count -= 1
            txn.put(key, ordinal)
            for term in memory.terms:
                terms[term].append(ordinal)
        if new:
            add_postings(txn, terms)
            txn.put("h", [last + len(new), count + len(new)])
        return len(new)

    return closure


def delete_memories(txn: KeyValueTxn, id_: str) -> bool:
    """Delete the memories with an id for good; return whether there were any."""
    found = list(txn.scan(prefix=_of_id(id_)))
    for key, ordinal in found:
        _remove(txn, ordinal)
        txn.delete(key)
    if found:
        last, count = head_of(txn)
        txn.put("h", [last, count - len(found)])
        txn.put(_deleted(id_), 1)
    return bool(found)


def _remove(txn: KeyValueTxn, ordinal: Any) -> None:
    if type(ordinal) is not int or not 0 <= ordinal < _ORDINALS:
        raise _damaged("the row of a memory's id")
    for term in terms_of(text_at(txn, ordinal)):
        drop_posting(txn, term, ordinal)
    txn.delete(_entry(ordinal))


def _damaged(what: str) -> CorruptValueError:
    return CorruptValueError(f"{what} is damaged; run 'memcore check'", key=b"")


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("id"), str)
        and isinstance(row.get("author", ()), str | None)
        and isinstance(row.get("at", ()), str | int | float | None)
        and isinstance(row.get("metadata", {}), dict)
        and (row.get("content") is not None or type(row.get("flags")) is int)
    )


def _content_at(view: KeyValueView, ordinal: int) -> tuple[dict[str, Any], types.Content] | None:
    row = view.get(_entry(ordinal))
    if row is None:
        return None
    if not _is_row(row):
        raise _damaged(f"memory {ordinal}")
    dumped, payload = row.get("content"), None
    if dumped is None:
        payload = view.content(_entry(ordinal))
        if payload is None:
            msg = f"the content of memory {ordinal} is missing; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
    try:
        if payload is not None:
            dumped = decode_json(payload, row["flags"])
        return row, read_known(types.Content.model_validate, dumped, "a memory")
    except (ValueError, LookupError, TypeError) as error:
        msg = f"memory {ordinal} is none that this ADK reads: {error}"
        raise CorruptValueError(msg, key=b"") from error


def text_at(view: KeyValueView, ordinal: int) -> str:
    """The text of a memory; empty if it does not exist."""
    found = _content_at(view, ordinal)
    return "" if found is None else text_of(found[1])


def entry_at(view: KeyValueView, ordinal: int) -> MemoryEntry | None:
    """A memory as an ADK entry; None if it does not exist."""
    found = _content_at(view, ordinal)
    if found is None:
        return None
    row, content = found
    return MemoryEntry(
        content=content,
        custom_metadata=row.get("metadata", {}),
        id=row["id"],
        author=row["author"],
        timestamp=_time_of(row["at"]),
    )


def _time_of(at: float | str | None) -> str | None:
    """A time in ADK's format; None if it is out of range."""
    if not isinstance(at, int | float):
        return at
    try:
        return datetime.fromtimestamp(at).isoformat()  # noqa: DTZ006 - local time, as in ADK
    except (ValueError, OverflowError, OSError):
        return None
