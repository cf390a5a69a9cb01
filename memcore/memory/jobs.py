"""Jobs of extraction as rows: ranges of sessions that an extractor has still to read, or gave up.

A watermark says up to which seq an extractor has read a session. What follows it is a job, one row,
as soon as somebody asks for it. Whoever leases the job reads its items and calls the extractor
outside any transaction; the commit that stores what came of it moves the watermark and removes the
job. A lease that ran out is taken over, and its holder can then commit nothing. A range that failed
too often is dead: the watermark passes it, and its row stays until somebody retries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import MemoryRow
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError
from memcore.log import Head
from memcore.memory.coverage import RESERVED
from memcore.memory.rows import RECORDED_END_MS, Book
from memcore.memory.trust import checked_name
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import is_opted_out
from memcore.store.datafile import MEMORIES
from memcore.store.interface import DeleteBudget, ReadTxn, Txn

__all__ = [
    "ATTEMPTS_MAX",
    "ITEMS_MAX",
    "JOB_ROWS",
    "LEASE_MS",
    "ExtractionJob",
    "ExtractorId",
    "JobRow",
    "check_jobs",
    "clear_jobs",
    "covered_to",
    "enqueue",
    "fail",
    "finish",
    "forget_jobs",
    "give_back",
    "is_job_row",
    "job_of",
    "jobs_in",
    "key_of_job",
    "leasable",
    "lease",
    "mend_jobs",
    "move_jobs",
    "need_lease",
    "read_again",
    "revive",
    "version_of_job",
    "watermark_of",
]


ATTEMPTS_MAX: Final = 5
"""Attempts after which a range is dead."""
ITEMS_MAX: Final = 100
"""Most items that an extractor is given at once."""
LEASE_MS: Final = 10 * 60 * 1000
"""Time in which a job is to be done; then somebody else may take it."""
_BACKOFF_MS: Final = 30_000
_BACKOFF_MAX_MS: Final = 3_600_000
"""Wait after the first failed attempt, doubled by each further one, and its limit."""
JOB_ROWS: Final = (MemoryRow.JOB, MemoryRow.WATERMARK)
_STATES: Final = ("waiting", "leased", "dead")
_VEIL_BYTES: Final = 16
_SEQ_END: Final = 2**63
_ATTEMPTS_END: Final = 2**31
_REASON_CHARS: Final = 400
_TOKEN_CHARS: Final = 32
_PART_CHARS: Final = 100
_JOB_PAGES: Final = 2
"""Pages that a watermark takes at most, beside its job."""


@record(frozen=True, slots=True)
class ExtractionJob:
    """Range of a session that an extractor has still to read, or has given up."""

    session: str
    """Name of the session; empty if it has none any more."""
    first: int
    last: int
    """Seqs of the range, both included."""
    extractor: str
    """Name and version."""
    state: str
    """``waiting``, ``leased`` or ``dead``."""
    attempts: int
    due_at: float
    """Time from which a waiting job may be taken, seconds since 1970."""
    leased_until: float | None
    reason: str | None
    """Failure of the last attempt: the type of what the extractor raised, without its text."""
    digest: bytes = field(default=b"", repr=False)
    """Digest of the extractor's name and version: two of these pairs may read the same."""


class ExtractorId(NamedTuple):
    """Name and version of an extractor: another version reads a session anew."""

    name: str
    version: str

    @property
    def label(self) -> str:
        """Name and version, as a memory states its extractor."""
        return f"{self.name} {self.version}"

    @property
    def digest(self) -> bytes:
        """The pair in keys: a program's name is no content, so it has no key of its own."""
        told = keys.pack_text(self.name) + keys.pack_text(self.version)
        return keys.blake2b(told, digest_size=_VEIL_BYTES).digest()

    @classmethod
    def of(cls, extractor: Any) -> ExtractorId:
        """Return the name and version that an extractor states.

        Raises:
            InvalidOptionError, InvalidItemError: it is not callable, or one of them is no short
                text.
        """
        if not callable(extractor):
            msg = f"extractor: expected a callable, got {type(extractor).__name__}"
            raise InvalidOptionError(msg)
        parts = [getattr(extractor, part, None) for part in ("name", "version")]
        for part, value in zip(("name", "version"), parts, strict=True):
            if len(checked_name(f"extractor.{part}", value)) > _PART_CHARS:
                msg = f"extractor.{part}: expected at most {_PART_CHARS} characters"
                raise InvalidOptionError(msg)
        if str(parts[0]).startswith(RESERVED):
            msg = f"extractor.name: {parts[0]!r:.40} is one of memcore's own names"
            raise InvalidOptionError(msg)
        return cls(str(parts[0]), str(parts[1]))


@record(frozen=True, slots=True)
class JobRow:
    """Job as it is stored. Times are milliseconds since 1970."""

    session: int
    name: str
    """Name of the session when the job was made."""
    first: int
    last: int
    who: ExtractorId
    state: str
    attempts: int
    due_ms: int
    lease_ms: int = 0
    token: str = ""
    """Random name of the lease, by which its holder is known."""
    reason: str = ""

    def is_free(self, now_ms: int, *, early: bool = False) -> bool:
        """Return True if it may be leased; ``early``: without waiting for its time.

        A time further ahead than any wait is that of a clock that was wrong, and has come.
        """
        if self.state == "leased":
            return self.lease_ms <= now_ms or self.lease_ms > now_ms + 2 * LEASE_MS
        is_due = self.due_ms <= now_ms or self.due_ms > now_ms + 2 * _BACKOFF_MAX_MS
        return self.state == "waiting" and (early or is_due)


# --- Encoding -------------------------------------------------------------------------------------


def _job_at(scope: int, row: JobRow) -> bytes:
    return _of_session(scope, MemoryRow.JOB, row.session, row.who.digest) + keys.u64(row.first)


def _of_session(scope: int, kind: int, session: int, digest: bytes = b"") -> bytes:
    return keys.memory_rows(scope, kind, keys.u64(session), digest)


def _put_job(book: Book, row: JobRow) -> JobRow:
    """Write a job's row; the first row of a memory sets the feature bit of the file."""
    book.txn.need_feature(MEMORIES)
    said = {
        "name": row.name, "last": row.last, "who": list(row.who), "state": row.state,
        "attempts": row.attempts, "due": row.due_ms, "lease": row.lease_ms, "token": row.token,
        "reason": row.reason,
    }  # fmt: skip
    key = _job_at(book.scope, row)
    book.txn.put(key, seal_value(key, *encode_json(said)))
    return row


def _unpack_job(key: bytes, said: Any) -> JobRow:
    """Return the job in a JSON object.

    Raises:
        ValueError, TypeError, LookupError: it is none.
    """
    session, first = keys.number_of(key[: 10 + 8]), keys.number_of(key)
    row = JobRow(
        session, said["name"], first, said["last"], ExtractorId(*said["who"]), said["state"],
        said["attempts"], said["due"], said["lease"], said["token"], said["reason"],
    )  # fmt: skip
    texts = (row.name, *row.who, row.token, row.reason)
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(0 < len(part) <= _PART_CHARS for part in row.who)
        or len(row.reason) > _REASON_CHARS
        or len(row.token) > _TOKEN_CHARS
        or row.state not in _STATES
        or not _is_number(row.last, _SEQ_END)
        or not 0 < first <= row.last
        or not _is_number(row.attempts, _ATTEMPTS_END)
        or not all(_is_number(at, RECORDED_END_MS) for at in (row.due_ms, row.lease_ms))
        or _job_at(keys.split_scoped(key)[0], row) != key
    ):
        raise ValueError(row.state)
    return row


def _is_number(value: Any, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _opened(key: bytes, value: bytes) -> JobRow:
    flags, body = open_value(key, value)
    with decoding(key, "job of extraction"):
        return _unpack_job(key, decode_json(body, flags))


def jobs_in(txn: ReadTxn, scope: int, session: int | None = None) -> Iterator[JobRow]:
    """Yield the jobs of a scope, or of a session, by session, extractor and range.

    A damaged row is left out, so that it stops no other job: ``check()`` reports it, and its range
    is asked for again, since no watermark has passed it.
    """
    rows = keys.memory_rows(scope, MemoryRow.JOB, b"" if session is None else keys.u64(session))
    for key, value in txn.scan(rows, keys.after(rows)):
        with suppress(CorruptValueError):
            yield _opened(key, value)


def job_of(txn: ReadTxn, scope: int, row: JobRow) -> ExtractionJob:
    """Return the public form of a job."""
    return ExtractionJob(
        _name_of(txn, scope, row), row.first, row.last, row.who.label, row.state, row.attempts,
        row.due_ms / 1000, row.lease_ms / 1000 if row.state == "leased" else None,
        row.reason or None, row.who.digest,
    )  # fmt: skip


def _name_of(txn: ReadTxn, scope: int, row: JobRow) -> str:
    """Return the name of a job's session: it may have another one by now."""
    if names.session_of(txn, scope, row.name) == row.session:
        return row.name
    found = (name for name, number in names.sessions(txn, scope) if number == row.session)
    return next(found, "")


# --- Watermarks -----------------------------------------------------------------------------------


class ReadMark(NamedTuple):
    """Seq up to which an extractor has read a session."""

    seq: int
    at_ms: int
    """Time at which it moved last."""
    who: ExtractorId


def watermark_of(txn: ReadTxn, scope: int, session: int, who: ExtractorId) -> ReadMark:
    """Read an extractor's watermark of a session; that of its beginning if it has none.

    Raises:
        CorruptValueError: its row is damaged.
    """
    key = _of_session(scope, MemoryRow.WATERMARK, session, who.digest)
    value = txn.get(key)
    return ReadMark(0, 0, who) if value is None else _unpack_watermark(key, value)


def _unpack_watermark(key: bytes, value: bytes) -> ReadMark:
    flags, body = open_value(key, value)
    with decoding(key, "watermark of extraction"):
        said = decode_json(body, flags)
        found = ReadMark(said["seq"], said["at"], ExtractorId(*said["who"]))
        if (
            not _is_number(found.seq, _SEQ_END)
            or not _is_number(found.at_ms, RECORDED_END_MS)
            or not all(isinstance(part, str) for part in found.who)
            or found.who.digest != key[-_VEIL_BYTES:]
        ):
            raise ValueError(found.seq)
    return found


def _put_mark(book: Book, session: int, mark: ReadMark) -> None:
    """Move a watermark; it never goes back."""
    known = watermark_of(book.txn, book.scope, session, mark.who)
    mark = mark._replace(seq=max(known.seq, mark.seq), at_ms=max(known.at_ms, mark.at_ms))
    book.txn.need_feature(MEMORIES)
    key = _of_session(book.scope, MemoryRow.WATERMARK, session, mark.who.digest)
    said = {"seq": mark.seq, "at": mark.at_ms, "who": list(mark.who)}
    book.txn.put(key, seal_value(key, *encode_json(said)))


def covered_to(txn: ReadTxn, scope: int, session: int, who: ExtractorId) -> int:
    """Return the seq up to which an extractor has read a session's history.

    A fork shares the items of its parent, and what was read there need not be read again.

    Raises:
        CorruptValueError: a row is damaged.
    """
    covered, limit, at = 0, _SEQ_END, session
    while at:
        covered = max(covered, min(watermark_of(txn, scope, at, who).seq, limit))
        value = txn.get(head_key(scope, at))
        if value is None:
            break
        head = Head.unpack(head_key(scope, at), value)
        at, limit = head.parent_session, min(limit, head.parent_seq)
    return covered


# --- Life of a job --------------------------------------------------------------------------------


def enqueue(
    book: Book, named: tuple[int, str], who: ExtractorId, last: int, now_ms: int
) -> JobRow | None:
    """Ask for a session to be read up to a seq; return its job, None if nothing is left to read.

    The job that follows the watermark grows, also while it is leased: its holder commits what it
    has read, and the rest waits.

    Args:
        book: the scope's memory.
        named: number and name of the session.
        who: the extractor.
        last: the seq.
        now_ms: the time.

    Raises:
        CorruptValueError: a row is damaged.
    """
    session, name = named
    after = covered_to(book.txn, book.scope, session, who)
    if last <= after:
        return None
    own = watermark_of(book.txn, book.scope, session, who).seq
    for known in jobs_in(book.txn, book.scope, session):
        if known.who == who and known.state != "dead" and known.first > own:
            return known if known.last >= last else _put_job(book, replace(known, last=last))
    return _put_job(book, JobRow(session, name, after + 1, last, who, "waiting", 0, now_ms))


def read_again(
    txn: Txn, place: tuple[int, int], name: str, seqs: tuple[int, int], now_ms: int
) -> None:
    """Have items read that are live again, by the extractors whose watermark has passed them.

    They may have been undone before an extractor came to them. One that did read them learns
    nothing new from them.

    Args:
        txn: the transaction that brings them back.
        place: scope and number of their session.
        name: the session's name.
        seqs: first and last of them.
        now_ms: the time.
    """
    scope, session = place
    rows = _of_session(scope, MemoryRow.WATERMARK, session)
    found = list(txn.scan(rows, keys.after(rows)))
    if not found or is_opted_out(txn, scope):
        return
    for key, value in found:
        with suppress(CorruptValueError):  # check() reports it; all items are read again
            mark = _unpack_watermark(key, value)
            last = min(seqs[1], mark.seq)
            row = JobRow(session, name, seqs[0], last, mark.who, "waiting", 0, now_ms)
            if last >= row.first and txn.get(_job_at(scope, row)) is None:
                _put_job(Book(txn, scope, b""), row)


def key_of_job(book: Book, job: ExtractionJob, session: int) -> bytes | None:
    """Return the key of a stored job by its public form; None if it is gone."""
    for row in jobs_in(book.txn, book.scope, session):
        if (row.first, row.who.digest) == (job.first, job.digest):
            return _job_at(book.scope, row)
    return None


def leasable(
    txn: ReadTxn,
    scope: int,
    who: ExtractorId,
    now_ms: int,
    *,
    session: int | None = None,
    early: bool = False,
) -> list[JobRow]:
    """Return the jobs of an extractor that may be leased, the one that waits longest first.

    Args:
        txn: the snapshot.
        scope: the scope.
        who: the extractor.
        now_ms: the time.
        session: only jobs of this session; None: of all.
        early: also those whose time has not come.
    """
    rows = jobs_in(txn, scope, session)
    found = [row for row in rows if row.who == who and row.is_free(now_ms, early=early)]
    return sorted(found, key=lambda row: (row.due_ms, row.session, row.first))


def lease(
    book: Book, row: JobRow, now_ms: int, token: str, *, early: bool = False
) -> JobRow | None:
    """Take a job; return it with its lease, None if it is another's, waits or is dead now.

    An attempt counts when it begins, so a range that ends the process is dead in the end as well.
    """
    key = _job_at(book.scope, row)
    value = book.txn.get(key)
    known = None if value is None else _opened(key, value)
    if known is None or not known.is_free(now_ms, early=early):
        return None
    if known.attempts >= ATTEMPTS_MAX:
        upto = min(known.last, known.first + ITEMS_MAX - 1)
        _bury(book, known, upto, known.reason or "its holder went away each time", now_ms)
        return None
    return _put_job(
        book,
        replace(
            known, state="leased", attempts=known.attempts + 1, lease_ms=now_ms + LEASE_MS,
            token=token,
        ),
    )  # fmt: skip


def need_lease(book: Book, row: JobRow) -> JobRow | None:
    """Return a leased job as it is stored now; None if its lease was lost."""
    key = _job_at(book.scope, row)
    value = book.txn.get(key)
    known = None if value is None else _opened(key, value)
    if known is None or known.state != "leased" or known.token != row.token:
        return None
    return known


def finish(book: Book, known: JobRow, upto: int, now_ms: int) -> None:
    """Remove a job of which everything up to a seq was read; the rest of it waits.

    In the transaction that stores what was extracted, after ``need_lease``.
    """
    book.txn.delete(_job_at(book.scope, known))
    _put_mark(book, known.session, ReadMark(upto, now_ms, known.who))
    _follow(book, known, upto, now_ms)


def _follow(book: Book, known: JobRow, upto: int, now_ms: int) -> None:
    """Let what a job holds beyond a seq be a job of its own."""
    if known.last > upto:
        rest = JobRow(
            known.session, known.name, upto + 1, known.last, known.who, "waiting", 0, now_ms
        )
        _put_job(book, rest)


def fail(book: Book, known: JobRow, upto: int, reason: str, now_ms: int) -> JobRow:
    """Let a job wait for its next attempt, or be dead after the last one; return it."""
    told = reason[:_REASON_CHARS]
    if known.attempts >= ATTEMPTS_MAX:
        return _bury(book, known, upto, told, now_ms)
    wait = min(_BACKOFF_MS << (known.attempts - 1), _BACKOFF_MAX_MS)
    return _put_job(
        book,
        replace(known, state="waiting", due_ms=now_ms + wait, lease_ms=0, token="", reason=told),
    )


def _bury(book: Book, known: JobRow, upto: int, reason: str, now_ms: int) -> JobRow:
    """Let a range be dead: the watermark passes it, so that what follows is read."""
    dead = replace(known, last=upto, state="dead", lease_ms=0, token="", reason=reason)
    _put_mark(book, known.session, ReadMark(upto, now_ms, known.who))
    _follow(book, known, upto, now_ms)
    return _put_job(book, dead)


def give_back(book: Book, known: JobRow, now_ms: int) -> None:
    """Let a leased job wait as if it had not been taken."""
    attempts = max(known.attempts - 1, 0)
    _put_job(
        book,
        replace(known, state="waiting", attempts=attempts, due_ms=now_ms, lease_ms=0, token=""),
    )


def revive(book: Book, key: bytes | None, now_ms: int) -> JobRow:
    """Let a dead or waiting job be taken at once, with all its attempts; return it.

    Raises:
        NotFoundError: there is no such job any more.
        InvalidOptionError: it is leased.
    """
    value = None if key is None else book.txn.get(key)
    if key is None or value is None:
        msg = "there is no such job: it was done, or its session is gone"
        raise NotFoundError(msg)
    row = _opened(key, value)
    if row.state == "leased" and not row.is_free(now_ms):
        msg = "job: it is being done; wait for its lease to end"
        raise InvalidOptionError(msg)
    return _put_job(
        book,
        replace(row, state="waiting", attempts=0, due_ms=now_ms, lease_ms=0, token=""),
    )


# --- Removal, renewal, salvage, check -------------------------------------------------------------


def forget_jobs(book: Book, session: int) -> None:
    """Remove the jobs and watermarks of a session that is deleted."""
    for kind in JOB_ROWS:
        rows = _of_session(book.scope, kind, session)
        book.txn.delete_range(rows, keys.after(rows))


def move_jobs(book: Book, session: int, to: int, moved: Mapping[int, int]) -> None:
    """Let jobs and watermarks follow the items of a session to the one that replaces it.

    ``moved`` maps old seqs to new ones. A lease is lost: its holder has read the old items.
    """
    rows = _of_session(book.scope, MemoryRow.WATERMARK, session)
    for key, value in list(book.txn.scan(rows, keys.after(rows))):
        with suppress(CorruptValueError):  # check() reports it; the items are read again
            mark = _unpack_watermark(key, value)
            seq = max((new for old, new in moved.items() if old <= mark.seq), default=0)
            _put_mark(book, to, mark._replace(seq=seq))
    found = list(jobs_in(book.txn, book.scope, session))
    forget_jobs(book, session)
    for row in found:
        seqs = [new for old, new in moved.items() if row.first <= old <= row.last]
        if row.state == "dead" and seqs:
            _put_job(book, replace(row, session=to, first=min(seqs), last=max(seqs)))
        elif seqs:
            enqueue(book, (to, row.name), row.who, max(seqs), row.due_ms)


def clear_jobs(book: Book) -> bool:
    """Remove all jobs of a scope, a piece a transaction; watermarks stay, and pass them.

    So what was said before its memories were cleared is not learned from jobs that waited.

    Returns:
        True if none is left.
    """
    rows = keys.memory_rows(book.scope, MemoryRow.JOB)
    piece, gone = DeleteBudget(), []
    is_whole = True
    for key, value in book.txn.scan(rows, keys.after(rows)):
        if not piece.admits(len(value), more_pages=_JOB_PAGES):
            is_whole = False
            break
        gone.append((key, value))
    for key, value in gone:
        book.txn.delete(key)
        with suppress(CorruptValueError):
            row = _opened(key, value)
            _put_mark(book, row.session, ReadMark(row.last, 0, row.who))
    return is_whole


def mend_jobs(book: Book, now_ms: int) -> None:
    """Make salvaged jobs consistent: those of lost sessions go, and no lease is left."""
    txn, scope = book.txn, book.scope
    for kind in JOB_ROWS:
        rows = keys.memory_rows(scope, kind)
        for key, value in list(txn.scan(rows, keys.after(rows))):
            if txn.get(head_key(scope, keys.number_of(key[:18]))) is None:
                txn.delete(key)
            elif kind == MemoryRow.JOB and (row := _opened(key, value)).state == "leased":
                give_back(book, row, now_ms)


def version_of_job(key: bytes, value: bytes) -> int:
    """Return a number by which the newest of several rows of a key is known.

    Raises:
        CorruptValueError: the row is damaged.
    """
    is_job = key[9] == MemoryRow.JOB
    return _opened(key, value).attempts if is_job else _unpack_watermark(key, value).seq


def is_job_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row can be decoded as a job or a watermark.

    Raises:
        CorruptValueError: it cannot.
    """
    if key[9] == MemoryRow.JOB:
        return _opened(key, value).first > 0
    return _unpack_watermark(key, value).seq >= 0


def check_jobs(txn: ReadTxn, scope: int, seed: bytes) -> Iterator[str]:  # noqa: ARG001 - as all
    """Verify a scope's jobs and watermarks; yield findings as text.

    Rows that fail their checksum are reported elsewhere.
    """
    for kind in JOB_ROWS:
        rows = keys.memory_rows(scope, kind)
        for key, value in txn.scan(rows, keys.after(rows)):
            session = keys.number_of(key[:18])
            try:
                open_value(key, value)
            except CorruptValueError:
                continue
            try:
                seq = (
                    _opened(key, value).last
                    if kind == MemoryRow.JOB
                    else _unpack_watermark(key, value).seq
                )
                head = txn.get(head_key(scope, session))
                end = 0 if head is None else Head.unpack(head_key(scope, session), head).next_seq
            except CorruptValueError:
                yield f"session {session}: a row of its extraction is malformed"
                continue
            if head is None:
                yield f"session {session}: it has rows of extraction and no head"
            elif seq >= end:
                yield f"session {session}: its extraction is ahead of it, at item {seq}"
