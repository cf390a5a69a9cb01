"""Rolling summary over the sessions of a user: extended with what is new, never made anew.

It is a memory of the kind ``note``, with its name as the subject. Beside it stands up to which item
of each session it has read (``memory/coverage.py``). Text and watermarks change in one commit; the
model is called outside any transaction. If a covered item is removed, nobody can say which of the
words were from it, so the summary is forgotten as a whole and the next extension begins anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import HEADER_BYTES
from memcore.errors import (
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    OutpacedError,
    ReadOnlyError,
)
from memcore.log import History
from memcore.log.history import read_rows
from memcore.memory.basis import SOURCES_MAX, merged_sources
from memcore.memory.coverage import SUMMARIZED, cover, covered_seq, summaries_in
from memcore.memory.extract import (
    CHARS_MAX,
    SCANNED_MAX,
    MemoryPlace,
    live_history,
    text_in_row,
)
from memcore.memory.jobs import ITEMS_MAX
from memcore.memory.judge import GivenText, is_grounded
from memcore.memory.lineage import root_of
from memcore.memory.rows import (
    Book,
    MemoryVersion,
    SourceRow,
    memory_of,
    read_entry,
    with_digest,
    write_entry,
    write_head,
)
from memcore.memory.statement import begin_change, next_version
from memcore.memory.trust import ACTIVE_BY, checked_text, weakest
from memcore.model import Memory, Message, Summarize, SummaryRequest
from memcore.options import (
    checked_bool,
    checked_int,
    checked_optional_int,
    checked_several,
    need_plain_function,
    refuse_copies,
)
from memcore.rows import names
from memcore.rows.lifecycle import is_opted_out, need_wanted
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "RollingSummary",
]


_BEFORE: Final = 32
"""Items before the new ones that are read for the names of the tools whose results follow."""
_ATTEMPTS: Final = 3
"""Calls of the model for one extension, if others change what it is made of meanwhile."""


_Session: TypeAlias = tuple[int, str]
"""Number and name."""


class _News(NamedTuple):
    """New items of one extension, read from one snapshot."""

    known: MemoryVersion | None
    """The summary as it is."""
    messages: tuple[Message, ...]
    """Messages for the model, each conversation under its date."""
    texts: tuple[GivenText, ...]
    """The items in it, with their trust."""
    read: Mapping[int, int]
    """Seq up to which everything was read, by the session that owns the items."""
    sources: tuple[SourceRow, ...]
    proofs: Mapping[tuple[int, int], bytes]
    """Beginning of each item's row, with its checksum, by owner and seq."""
    sessions: tuple[int, ...]
    """Numbers of the sessions that were looked at."""
    left: tuple[_Session, ...]
    """Sessions that were not read to their end."""


class RollingSummary:
    """Rolling summary over a user's sessions: ``memory.summary(name)``.

    Args:
        place: the memory.
        name: the summary's name.
        read_only: True if the file may not be written.
    """

    __reduce__ = refuse_copies

    def __init__(self, place: MemoryPlace, name: str, *, read_only: bool) -> None:
        self._place = place
        self._read_only = read_only
        self._name = name

    def __repr__(self) -> str:
        return f"RollingSummary({self._name!r})"

    def get(self) -> Memory | None:
        """Return the summary as it is; None if there is none, or the user opted out.

        Raises:
            CorruptValueError
        """

        def look(txn: ReadTxn) -> MemoryVersion | None:
            scope = self._place.find(txn)
            if scope is None or is_opted_out(txn, scope):
                return None
            return _summary_of(txn, scope, self._name)

        found = self._place.store.read(look)
        return None if found is None else memory_of(found)

    def extend(
        self,
        summarize: Summarize,
        *,
        sessions: Iterable[str] | None = None,
        users_only: bool = False,
        max_items: int = 100,
        max_tokens: int | None = None,
        instructions: str | None = None,
    ) -> Memory | None:
        """Let a model extend the summary with what it has not read; return the summary.

        The model is given the summary and the new items, as often as there are more than it gets
        at once; each extension is a commit of its own. Without new items it is not called. System
        prompts, events, tools of memory and recalled memories are left out, as are damaged items.

        Trust is that of the weakest item that the summary has read, so one of whole conversations
        waits in quarantine until somebody promotes it.

        Args:
            summarize: a summarizer as for compaction, such as ``OpenAISummarizer``: called with a
                ``SummaryRequest``; returns the new text, up to 16 KiB.
            sessions: names of the sessions to read, the oldest first; None: all of the user.
            users_only: read only what the user wrote, without what is pasted. If all numbers and
                names of the text and half of its words stand there, it is active at once.
            max_items: most items to give at once, up to 100.
            max_tokens: size that the summary is asked to have.
            instructions: more instructions for the model.

        Raises:
            NotFoundError: there is no such session.
            InvalidItemError: the text is empty, too long, or holds hidden characters.
            InvalidOptionError: an option is invalid, or the text was forgotten before.
            BlockedError: a guard or the redaction policy refuses the text.
            OutpacedError: others changed the summary or the items three times meanwhile.
            OptedOutError, ReadOnlyError, StorageError
        """
        need_plain_function("summarize", summarize, instead="give one that returns a text")
        checked_bool("users_only", users_only)
        most = checked_int("max_items", max_items, least=1)
        if most > ITEMS_MAX:
            msg = f"max_items: expected at most {ITEMS_MAX}, got {most}"
            raise InvalidOptionError(msg)
        if self._read_only:
            msg = "the database is open read-only; open it for writing to extend a summary"
            raise ReadOnlyError(msg)
        checked_optional_int("max_tokens", max_tokens, least=1)
        wanted = _checked_sessions(sessions)
        store = self._place.store
        left = store.read(lambda txn: self._sessions(txn, wanted))
        attempts = 0
        while left:
            gather = partial(self._gather, sessions=left, users_only=users_only, most=most)
            material = store.read(gather)
            asked = _request(material, max_tokens, instructions)
            text = None if asked is None else self._summarized(summarize, asked)
            if self._stored(material, text, users_only=users_only):
                left, attempts = material.left, 0
                continue
            attempts += 1
            if attempts == _ATTEMPTS:
                msg = f"summary {self._name!r:.80}: others changed what it rests on, thrice"
                raise OutpacedError(msg)
        return self.get()

    # --- reading ----------------------------------------------------------------------------------

    def _sessions(self, txn: ReadTxn, wanted: list[str] | None) -> tuple[_Session, ...]:
        """Return the sessions to read, the oldest first.

        Raises:
            NotFoundError: one does not exist.
            OptedOutError
        """
        scope = self._place.find(txn)
        known: dict[str, int] = {}
        if scope is not None:
            need_wanted(txn, scope)
            if wanted is None:
                known = dict(names.sessions(txn, scope))
            else:
                found = ((name, names.session_of(txn, scope, name)) for name in wanted)
                known = {name: number for name, number in found if number is not None}
        missing = [name for name in wanted or () if name not in known]
        if missing:
            msg = f"there is no session {missing[0][:80]!r}"
            raise NotFoundError(msg)
        return tuple(sorted((number, name) for name, number in known.items()))

    def _gather(
        self, txn: ReadTxn, *, sessions: tuple[_Session, ...], users_only: bool, most: int
    ) -> _News:
        """Read what the summary has not read, as much as is given at once."""
        scope = self._place.find(txn)
        if scope is None:
            return _News(None, (), (), {}, (), {}, (), ())
        need_wanted(txn, scope)
        known = _summary_of(txn, scope, self._name)
        read: dict[int, int] = {}
        given: list[tuple[_Session, int, GivenText]] = []
        seen: list[int] = []
        scanned = chars = at = 0
        is_full = False
        while at < len(sessions) and not is_full:
            number = sessions[at][0]
            live = live_history(txn, scope, number)
            if live is None:  # deleted meanwhile
                at += 1
                continue
            seen.append(number)
            for owner, seq, made in _unread(txn, scope, known, live[1], read):
                text = None if made is None else _given(made, users_only=users_only)
                size = 0 if text is None else len(text.text)
                is_full = scanned == SCANNED_MAX or (
                    text is not None
                    and bool(given)
                    and (len(given) == most or chars + size > CHARS_MAX)
                )
                if is_full:
                    break
                scanned += 1
                read[owner] = max(seq, read.get(owner, 0))
                if text is not None:
                    chars += size
                    given.append((sessions[at], owner, text))
            if not is_full:
                at += 1
            if known is None or covered_seq(txn, scope, known.id, number) is None:
                read.setdefault(number, 0)  # its deletion ends the summary, whoever owns the items
        cited: dict[tuple[_Session, int], list[int]] = {}
        proofs: dict[tuple[int, int], bytes] = {}
        for session, owner, text in given:
            cited.setdefault((session, owner), []).append(text.seq)
            value = txn.get(keys.session_row(scope, owner, Row.ITEM, text.seq))
            proofs[owner, text.seq] = bytes((value or b"")[:HEADER_BYTES])
        by = weakest(each.by for *_, each in given) if given else ""
        return _News(
            known,
            tuple(_messages((session, text) for session, _, text in given)),
            tuple(text for *_, text in given),
            read,
            tuple(
                SourceRow(
                    number, name, owner, root_of(txn, scope, number),
                    tuple(seqs[-SOURCES_MAX:]), by,
                )
                for ((number, name), owner), seqs in cited.items()
            ),
            proofs,
            tuple(seen),
            sessions[at:],
        )  # fmt: skip

    # --- writing ----------------------------------------------------------------------------------

    def _summarized(self, summarize: Summarize, request: SummaryRequest) -> str:
        """Call the model; return its text as it may be stored."""
        found: object = summarize(request)
        if inspect.iscoroutine(found):
            found.close()
            msg = "summarize: expected a function that returns a text, got a coroutine function"
            raise InvalidOptionError(msg)
        try:
            text = checked_text(found)
        except InvalidItemError as error:
            raise InvalidItemError(f"what summarize returned, {error}") from error
        admitted = self._place.admit({"text": text, "attributes": {}, "labels": {}})
        return str(admitted["text"])

    def _stored(self, material: _News, text: str | None, *, users_only: bool) -> bool:
        """Store the text and what it has read, in one commit; False if others were faster."""
        if text is None and (material.known is None or not material.read):
            return True
        by = "" if text is None else _trust(material, text, users_only=users_only)

        def closure(txn: Txn) -> bool:
            scope = self._place.find(txn)
            if scope is None:
                return False
            need_wanted(txn, scope)
            known = _summary_of(txn, scope, self._name)
            if _version(known) != _version(material.known):
                return False
            for number in material.sessions:
                self._place.drafts.flush_opened(txn, scope, number)
                if live_history(txn, scope, number) is None:
                    return False
            for (owner, seq), proof in material.proofs.items():
                value = txn.get(keys.session_row(scope, owner, Row.ITEM, seq)) or b""
                if value[:HEADER_BYTES] != proof:
                    return False
            book = Book(txn, scope, self._place.seed, self._place.uses)
            found = known if text is None else self._write(book, known, material, text, by)
            if found is not None:
                cover(txn, scope, found.id, material.read)
            return True

        return self._place.store.transact(closure)

    def _write(
        self, book: Book, known: MemoryVersion | None, material: _News, text: str, by: str
    ) -> MemoryVersion:
        """Write the next version of the summary, or the first one.

        Raises:
            InvalidOptionError: the text was forgotten.
        """
        for number in with_digest(book, text):
            stone = read_entry(book.txn, book.scope, number)
            if stone is not None and stone.is_gone:
                msg = f"summarize: its text was forgotten as memory {number}"
                raise InvalidOptionError(msg)
        now_ms = self._place.now_ms()
        head = begin_change(book, now_ms)
        newest_ms = int(max(each.at for each in material.texts) * 1000)
        status = "active" if by in ACTIVE_BY else "quarantined"
        rows = tuple(row._replace(by=by) for row in material.sources)
        if known is None:
            found = MemoryVersion(
                id=head.next_id, version=1, kind="note", by=by, status=status,
                recorded_ms=head.last_ms, text=text, subject=self._name, extractor=SUMMARIZED,
                sources=merged_sources((), rows), observed_ms=newest_ms,
            )  # fmt: skip
            write_head(book.txn, book.scope, head._replace(next_id=head.next_id + 1))
            return write_entry(book, found, None)
        write_head(book.txn, book.scope, head)
        sources = tuple(row._replace(by=by) for row in merged_sources(known.sources, rows))
        promoted_by = known.promoted_by if status == known.status == "active" else None
        found = next_version(
            known, now_ms, text=text, by=by, status=status, sources=sources,
            promoted_by=promoted_by, observed_ms=max(newest_ms, known.observed_ms or 0),
        )  # fmt: skip
        return write_entry(book, found, known)


def _checked_sessions(sessions: Iterable[str] | None) -> list[str] | None:
    """Return the names of sessions, checked.

    Raises:
        InvalidOptionError: it is one text, or a name is none.
    """
    if sessions is None:
        return None
    found = list(checked_several("sessions", sessions, "several names in a list"))
    for name in found:
        names.check_name(name, "session")
    return found


def _version(record: MemoryVersion | None) -> tuple[int, int] | None:
    return None if record is None else (record.id, record.version)


def _summary_of(txn: ReadTxn, scope: int, name: str) -> MemoryVersion | None:
    """Return the summary of a name; one that a legal hold keeps is none any more."""
    for number in summaries_in(txn, scope):
        record = read_entry(txn, scope, number)
        if (
            record is not None
            and record.is_summary
            and record.status in ("active", "quarantined")
            and record.subject == name
        ):
            return record
    return None


def _unread(
    txn: ReadTxn,
    scope: int,
    known: MemoryVersion | None,
    history: History,
    read: Mapping[int, int],
) -> Iterator[tuple[int, int, GivenText | None]]:
    """Yield owner and seq of each item of a session that was not read, with its text if it has one.

    Args:
        txn: the snapshot.
        scope: the scope.
        known: the summary; None: there is none.
        history: the session's history.
        read: what was read beside, by owner, such as by another fork.
    """
    for _, owner, lo, hi in history.spans(0, history.count):
        upto = None if known is None else covered_seq(txn, scope, known.id, owner)
        first = max(lo, max(upto or 0, read.get(owner, 0)) + 1)
        called: dict[object, str] = {}
        start = max(lo, first - _BEFORE)
        if first > hi:
            continue
        for row in read_rows(txn, scope, owner, position=start, lo=start, hi=hi):
            if isinstance(row, CorruptValueError):  # check() reports it
                continue
            made = text_in_row(txn, scope, row, called)
            if row[1] >= first:
                yield owner, row[1], made


def _given(made: GivenText, *, users_only: bool) -> GivenText | None:
    """Return what a summary reads of an item; None: nothing."""
    if users_only:
        is_users = made.by == "user" and bool(made.own.strip())
        return made._replace(text=made.own) if is_users else None
    return made._replace(by="import") if made.pasted else made


def _messages(given: Iterable[tuple[_Session, GivenText]]) -> Iterator[Message]:
    """Yield items as messages, each conversation under the date of its first item."""
    before: _Session | None = None
    for session, text in given:
        if session != before:
            yield {"role": "user", "content": f"Conversation of {_day(text.at)}:"}
            before = session
        if text.by == "tool":
            yield {"role": "user", "content": f"Result of a tool:\n{text.text}"}
        else:
            role = "user" if text.by == "user" or text.pasted else "assistant"
            yield {"role": role, "content": text.text}


def _day(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return "an unknown day"


def _request(
    material: _News, max_tokens: int | None, instructions: str | None
) -> SummaryRequest | None:
    """Return what the model is asked; None without new items."""
    if not material.messages:
        return None
    before = None if material.known is None else material.known.text
    return SummaryRequest(
        material.messages, before, max_tokens=max_tokens, instructions=instructions
    )


def _trust(material: _News, text: str, *, users_only: bool) -> str:
    """Return the trust in a text that a model made."""
    known = material.known
    before = () if known is None else (known.by,)
    by = weakest((*before, *(each.by for each in material.texts)))
    if not users_only:
        return weakest((by, "assistant"))
    ground = [each.own for each in material.texts]
    if known is not None and known.by in ACTIVE_BY:
        ground.append(known.text)
    return by if is_grounded(text, ground) else weakest((by, "assistant"))
