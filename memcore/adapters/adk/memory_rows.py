"""Memories of ADK as rows of a key/value namespace, and their documents in the search index.

- ``h``: the last ordinal assigned, and the number of memories;
- ``e<ordinal>``: a memory; large content is the entry's content;
- ``i<id><session>``: the ordinal of the memory with that id;
- ``d<id>``: a tombstone: memories with that id were deleted, and are not stored again;
- ``s<session>``: the watermark of a session: its leading events, all of which are stored;
- ``t...``: postings of an index of its own, which earlier versions of memcore wrote; they are
  removed before anything else is removed or found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import blake2b
from itertools import islice
from math import isfinite
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore import search
from memcore.adapters.adk.commit import Content
from memcore.adapters.adk.events import read_known
from memcore.adapters.adk.names import END, label
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import decode_json, decoding, encode_json
from memcore.errors import CorruptValueError, InvalidItemError
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView, transaction_of
from memcore.records import record
from memcore.rows.lifecycle import need_free
from memcore.search.index import is_leaving

__all__ = [
    "UNKNOWN_SESSION",
    "Memory",
    "adding",
    "batches",
    "behind",
    "chars_of",
    "delete_memories",
    "drop_damaged",
    "drop_old_index",
    "entry_at",
    "find_memories",
    "has_old_index",
    "head_of",
    "index_memories",
    "is_known",
    "memory_of",
]


# --- Memories as rows of a key/value namespace ----------------------------------------------------

_ID_BYTES_MAX: Final = 200
_CONTENT_BYTES_MAX: Final = 8 * 1024
"""Content larger than this is not kept in its row."""
_ORDINALS: Final = 2**32
_BATCH: Final = 32
_BATCH_BYTES: Final = 1024**2
_WORD: Final = re.compile(r"\w")
UNKNOWN_SESSION: Final = "__unknown_session_id__"
"""ADK's name for the session of events that were given without one."""


@record(slots=True)
class Memory:
    """A memory to be stored."""

    id: str
    session: str
    """The session it came from; empty: none."""
    row: dict[str, Any]
    content: bytes | None
    """JSON of large content."""
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
        if len(payload) > _CONTENT_BYTES_MAX:
            return cls(id_, session, {**row, "flags": flags}, payload)
        return cls(id_, session, {**row, "content": dumped}, None)


def memory_of(
    event: Event, session: str, metadata: Mapping[str, Any] | None, *, secret: bytes = b""
) -> Memory | None:
    """The memory of an event; None if it has no searchable text."""
    if event.content is None or not _WORD.search(text_of(event.content)):
        return None
    return Memory.of_event(event, session, metadata, secret=secret)


def text_of(content: types.Content) -> str:
    """The searchable text of a content."""
    return " ".join([part.text for part in content.parts or () if part.text])


def chars_of(content: types.Content | None) -> int:
    """The length of ``text_of`` in characters."""
    return 0 if content is None else sum(len(part.text or "") for part in content.parts or ())


def batches(memories: Sequence[Memory]) -> list[list[Memory]]:
    """Split memories into batches of one commit each."""
    found: list[list[Memory]] = []
    size = 0
    for memory in memories:
        size += len(memory.content or b"")
        if not found or size > _BATCH_BYTES or len(found[-1]) == _BATCH:
            found.append([])
            size = len(memory.content or b"")
        found[-1].append(memory)
    return found


# --- rows -----------------------------------------------------------------------------------------


_ENTRY_KEY: Final = re.compile("e[0-9a-f]{8}")
_ENTRIES_STOP: Final = "f"


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
    """``(last ordinal assigned, number of memories)``; as the entries say it if its row was lost.

    Raises:
        CorruptValueError: it is damaged.
    """
    match view.get("h"):
        case [int() as last, int() as count] if 0 <= count <= last < _ORDINALS - _BATCH:
            return last, count
        case None:
            given = [int(key[1:], 16) for key in _entry_keys(view)]
            return (max(given), len(given)) if given else (0, 0)
        case _:
            raise _damaged("the count of memories")


def _entry_keys(view: KeyValueView) -> Iterator[str]:
    rows = view.scan(_entry(0), _ENTRIES_STOP)
    return (key for key, _ in rows if _ENTRY_KEY.fullmatch(key))


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
        # Staged contents first: if one is missing, nothing has been written yet.
        for ordinal, (memory, content) in enumerate(new.values(), last + 1):
            txn.put(_entry(ordinal), memory.row, content=content)
        _need_current_index(txn, last)
        gone = []
        for ordinal, (key, _) in enumerate(new.items(), last + 1):
            before = txn.get(key)
            if before is not None:
                gone.append(before)
            txn.put(key, ordinal)
        _remove(txn, gone)
        if new:
            txn.put("h", [last + len(new), count + len(new) - len(gone)])
        return len(new)

    return closure


def delete_memories(txn: KeyValueTxn, id_: str) -> bool:
    """Delete the memories with an id for good; return whether there were any."""
    found = list(txn.scan(prefix=_of_id(id_)))
    _remove(txn, [ordinal for _, ordinal in found])
    for key, _ in found:
        txn.delete(key)
    if found:
        last, count = head_of(txn)
        txn.put("h", [last, count - len(found)])
        txn.put(_deleted(id_), 1)
    return bool(found)


def _remove(txn: KeyValueTxn, ordinals: Sequence[Any]) -> None:
    """Remove entries with their documents.

    Raises:
        HeldError: a legal hold covers the user.
    """
    inner, scope = transaction_of(txn)
    if ordinals and scope is not None:
        need_free(inner, scope, what="the memory of ADK")
    documents = []
    for ordinal in ordinals:
        if type(ordinal) is not int or not 0 <= ordinal < _ORDINALS:
            raise _damaged("the row of a memory's id")
        row = txn.get(_entry(ordinal))
        if row is not None:
            if not _is_row(row):
                raise _damaged(f"memory {ordinal}")
            documents.append(_document_id(ordinal, row["session"]))
            txn.delete(_entry(ordinal))
    if documents and scope is not None:
        search.remove_documents(inner, scope, search.DocumentKind.ADK, documents)


def _damaged(what: str) -> CorruptValueError:
    return CorruptValueError(f"{what} is damaged; run 'memcore check'", key=b"")


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("id"), str)
        and isinstance(row.get("session"), str)
        and isinstance(row.get("author", ()), str | None)
        and isinstance(row.get("at", ()), str | int | float | None)
        and isinstance(row.get("metadata", {}), dict)
        and (row.get("content") is not None or type(row.get("flags")) is int)
    )


def _content_of(view: KeyValueView, ordinal: int, row: Any) -> tuple[dict[str, Any], types.Content]:
    """A row of an entry, checked, and its content."""
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


def entry_at(view: KeyValueView, ordinal: int) -> MemoryEntry | None:
    """A memory as an ADK entry; None if it does not exist."""
    stored = view.get(_entry(ordinal))
    if stored is None:
        return None
    row, content = _content_of(view, ordinal, stored)
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


# --- Documents in the scope's search index --------------------------------------------------------
# The index has the documents of all entries up to an ordinal, its progress. Storing a memory leaves
# the index alone: a search ranks a few entries that it lacks beside it, and adds them first if they
# are many. What removes an entry removes its document in the same commit.

_GROUP_BYTES: Final = 8
_REPLY_WEIGHT: Final = 0.5
"""Weight of what a model says, as in sessions: measured on BEAM 100K (docs/search.md)."""
_USER: Final = "user"
"""Author of a user's events in ADK: a word that says nothing about one of them."""
_TIME_MAX: Final = 2**32 - 2
_INDEX_ENTRIES: Final = 256
_INDEX_CHARS: Final = 4 * 1024**2
BEHIND_MAX: Final = 32
"""Entries that the index lacks and a search reads for itself; more are indexed first."""
UNINDEXED_MAX: Final = 2048
"""Entries that the index lacks and a search of a read-only handle reads: the newest ones."""
_SPARE: Final = 16
_MORE: Final = 4
_OLD: Final = ("t", "u")
"""Range of the rows of the index of earlier versions."""


def _document_id(ordinal: int, session: str) -> bytes:
    """The id of a document: events of a session are in a group, in their order."""
    packed = session.encode("utf-8", "surrogatepass")
    return blake2b(packed, digest_size=_GROUP_BYTES).digest() + keys.u64(ordinal)


def _document(ordinal: int, row: Mapping[str, Any], content: types.Content) -> search.Document:
    author, session = row["author"] or "", row["session"]
    seconds = _seconds_of(row["at"])
    about = "" if author in ("", _USER) else f"{author}: "
    dated = "" if seconds is None else f"\n{search.month_words(seconds)}"
    replies = bool(session) and content.role == "model"
    return search.Document(
        search.DocumentKind.ADK,
        _document_id(ordinal, session),
        f"{about}{text_of(content)}{dated}",
        weight=_REPLY_WEIGHT if replies else 1.0,
        time=seconds or 0.0,
        has_neighbours=session not in ("", UNKNOWN_SESSION),
    )


def _seconds_of(at: float | str | None) -> float | None:
    """A time in seconds since 1970; None if it is none, or out of range."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    return at if at is not None and 0 <= at <= _TIME_MAX else None


def _progress(view: KeyValueView) -> tuple[search.IndexHead | None, int]:
    """The head of the scope's index and the last ordinal in it; None and 0 without an index.

    Raises:
        CorruptValueError: the index is damaged.
    """
    txn, scope = transaction_of(view)
    head = None if scope is None else search.read_head(txn, scope)
    if scope is None or head is None:
        return None, 0
    noted = search.source_of(txn, scope, search.DocumentKind.ADK)
    if noted is None:
        return head, 0
    with decoding(bytes((Kind.SEARCH,)), "progress of ADK's memories in a search index"):
        return head, int(keys.U64.unpack(noted)[0])


def _need_current_index(txn: KeyValueTxn, last: int) -> None:
    """Drop an index that has entries which were never given out: the namespace was cleared."""
    inner, scope = transaction_of(txn)
    try:
        is_current = _progress(txn)[1] <= last
    except CorruptValueError:
        is_current = False
    if not is_current and scope is not None:
        search.drop_index(inner, scope)


def _entries(
    view: KeyValueView, after: int, last: int, *, limit: int, newest: bool = False
) -> Iterator[tuple[int, Any, search.Document | None]]:
    """Yield ordinal, row and document of the first entries behind an ordinal, or of the newest.

    None: the entry cannot be read.
    """
    if after >= last:
        return
    rows = view.scan(_entry(after + 1), _entry(last + 1), reverse=newest)
    for key, row in islice((each for each in rows if _ENTRY_KEY.fullmatch(each[0])), limit):
        ordinal = int(key[1:], 16)
        try:
            made = _document(ordinal, *_content_of(view, ordinal, row))
        except CorruptValueError:
            made = None  # whoever reads it is told
        yield ordinal, row, made


def behind(view: KeyValueView) -> int:
    """The number of entries that the index lacks; -1: it has to be compared with them anyway.

    Raises:
        CorruptValueError: the index is damaged.
    """
    if has_old_index(view):
        return -1
    return max(head_of(view)[0] - _progress(view)[1], -1)


def has_old_index(view: KeyValueView) -> bool:
    """Return whether there are rows of an index that an earlier version of memcore wrote."""
    return any(True for _ in view.scan(*_OLD, limit=1))


def drop_old_index(kv: KeyValue) -> None:
    """Remove the rows of an index that an earlier version of memcore wrote, in short commits."""
    if kv.read(has_old_index):
        kv.delete_range(*_OLD)


def index_memories(kv: KeyValue) -> bool:
    """Bring the search index up to the last entry, in short commits.

    Texts are read and analyzed outside the write transactions.

    Returns:
        False if another index has to be removed first (``resume_removals``), or the user opted out.

    Raises:
        CorruptValueError: the index is damaged.
    """
    while kv.transact(_ready_index):
        step = kv.read(_next_step)
        if step is None:
            return True
        kv.transact(partial(_index, step=step))
        while kv.transact(_merge_piece):
            pass
    return False


def _merge_piece(txn: KeyValueTxn) -> bool:
    inner, scope = transaction_of(txn)
    return scope is not None and search.merge_piece(inner, scope)


def _ready_index(txn: KeyValueTxn) -> bool:
    """Create the index if there is none; return whether entries can be added to it."""
    if txn.forgets:
        return False
    _need_current_index(txn, head_of(txn)[0])
    inner, scope = transaction_of(txn)
    if scope is None:
        return False
    writer = search.IndexWriter(inner, scope, create=True)
    if not writer.exists and not is_leaving(inner, scope):
        search.drop_index(inner, scope)  # it is of another analysis of texts
    writer.close()
    return writer.exists


class _Step(NamedTuple):
    """The next entries to index."""

    key: bytes
    """Key of the index that their documents are made for."""
    upto: int
    """The last ordinal of them: the progress of the index once it has them."""
    made: list[tuple[int, Any, search.PreparedDocument]]
    """Ordinal, row and document of each."""


def _next_step(view: KeyValueView) -> _Step | None:
    """The next entries to index; None if there are none."""
    head, done = _progress(view)
    last = head_of(view)[0]
    if head is None or done >= last:
        return None
    found = _Step(head.key, last, [])
    chars = 0
    for count, (ordinal, row, document) in enumerate(
        _entries(view, done, last, limit=_INDEX_ENTRIES), 1
    ):
        if document is not None:
            found.made.append((ordinal, row, document.prepared(head.key)))
            chars += len(document.text)
        if count == _INDEX_ENTRIES or chars > _INDEX_CHARS:
            return found._replace(upto=ordinal)
    return found


def _index(txn: KeyValueTxn, step: _Step) -> None:
    """Add documents, unless the index or the entries have moved on since they were made."""
    inner, scope = transaction_of(txn)
    head, done = _progress(txn)
    start = step.made[0][0] if step.made else step.upto
    if scope is None or head is None or head.key != step.key or not done < start <= step.upto:
        return
    if txn.forgets or step.upto > head_of(txn)[0]:
        return
    present = [(txn.get(_entry(ordinal)), row, made) for ordinal, row, made in step.made]
    if any(now not in (None, row) for now, row, _ in present):
        return  # the namespace was cleared, and ordinals were given out again
    writer = search.IndexWriter(inner, scope)
    writer.add(made for now, _, made in present if now is not None)
    writer.put_source(search.DocumentKind.ADK, keys.u64(step.upto))
    writer.close()


def find_memories(
    view: KeyValueView, query: str, most: int, indexes: search.IndexCache
) -> list[MemoryEntry]:
    """The entries that share a word with a query, the best first.

    Raises:
        CorruptValueError: a row of the index or of an entry is damaged.
    """
    txn, scope = transaction_of(view)
    last, count = head_of(view)
    if scope is None or not count:
        return []
    head, done = _progress(view)
    cache = None if head is None else indexes
    head = head or search.IndexHead(os.urandom(16))
    lacking = (each[2] for each in _entries(view, done, last, limit=UNINDEXED_MAX, newest=True))
    beside = [each.prepared(head.key) for each in lacking if each is not None]
    asked = search.Query(query, kinds=(search.DocumentKind.ADK,))
    wanted = most + _SPARE
    while True:
        ranking = search.rank(txn, scope, head, cache, asked, k=min(wanted, count), beside=beside)
        found: list[MemoryEntry] = []
        for match in ranking.matches:
            entry = entry_at(view, _ordinal_of(match)) if match.own > 0 else None
            if entry is not None:
                found.append(entry)
                if len(found) == most:
                    return found
        if len(ranking.matches) < wanted:
            return found
        wanted *= _MORE


def _ordinal_of(match: search.Match) -> int:
    with decoding(bytes((Kind.SEARCH,)), "document of ADK's memory in a search index"):
        return int(keys.U64.unpack(match.id[_GROUP_BYTES:])[0])


def drop_damaged(kv: KeyValue, error: CorruptValueError) -> None:
    """Drop the scope's search index if it is what is damaged; otherwise raise the error again."""
    if not search.is_index_error(error):
        raise error

    def closure(txn: KeyValueTxn) -> None:
        inner, scope = transaction_of(txn)
        if scope is not None:
            search.drop_index(inner, scope)

    kv.transact(closure, makes_room=True)
