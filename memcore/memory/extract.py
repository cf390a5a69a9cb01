"""Extraction: items of a session are read, an extractor is called, and what it says is judged.

Three steps, of which only the first and the last are transactions. A job is leased; its items are
read from one snapshot. The extractor is called, and every candidate judged, redacted and guarded.
Then one commit stores what is left, moves the watermark and removes the job; it stores nothing if
the lease was lost, or if an item was changed meanwhile. So whatever is killed, and wherever, a
range is neither lost nor read into the memory twice.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, HEADER_BYTES
from memcore.errors import (
    BlockedError,
    CorruptValueError,
    ExtractorError,
    InvalidItemError,
    InvalidOptionError,
    MemcoreError,
    NotFoundError,
    OptedOutError,
)
from memcore.log import Head, History, SessionTxns
from memcore.log.history import read_rows
from memcore.log.read import opened
from memcore.memory import jobs
from memcore.memory.clearing import is_clearing
from memcore.memory.jobs import ITEMS_MAX, ExtractionJob, ExtractorId, JobRow
from memcore.memory.judge import (
    CANDIDATES_MAX,
    Extraction,
    ExtractionItem,
    Extractor,
    Given,
    GivenText,
    Verdict,
    is_repeated,
    judged,
)
from memcore.memory.playbook import outcomes_of
from memcore.memory.recall import CLOSING, HEADING, OPENING
from memcore.memory.rows import Book, read_head
from memcore.memory.statement import Statement, remember
from memcore.memory.trust import (
    KINDS,
    by_of_item,
    own_texts,
    shown_name,
    split_pasted,
)
from memcore.model import Item, ItemKind, Memory, MemoryHit, Source
from memcore.options import checked_choices
from memcore.records import record
from memcore.rows import index, names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import is_opted_out, need_wanted
from memcore.store.interface import ReadTxn, Store, Txn
from memcore.wire.expire import EXPIRED_TEXT
from memcore.wire.message import call_names, results_of, texts_of

__all__ = [
    "CandidateOutcome",
    "ExtractionReport",
    "MemoryPlace",
    "Unread",
    "checked_kinds",
    "extract",
    "extractor_or_rules",
    "list_jobs",
    "live_history",
    "pending_rows",
    "retry_job",
    "run_row",
    "text_in_row",
    "unread",
    "updated_between",
]


SCANNED_MAX: Final = 1_000
"""Most items of a history that one call of an extractor passes over."""
ITEM_CHARS_MAX: Final = 16_000
"""Longest text of an item that is extracted: a longer one is a document."""
CHARS_MAX: Final = 60_000
"""Most characters that an extractor is given at once."""
CITED_CHARS_MAX: Final = 250_000
"""Most characters of items that the candidates of one call cite: the commit reads them again."""
_BEFORE: Final = 32
"""Items before a range that are read for what its first ones refer to."""
_TURNS_MAX: Final = 2_000
_SIMILAR: Final = 8
_KNOWN: Final = ("active", "quarantined", "superseded", "archived")
_QUERY_CHARS: Final = 2_000
_SAID_CHARS: Final = 200
_ENDS: Final = ("cut", "refused", "failed")
"""Reasons of an ExtractorError."""
_MEMORY_TOOL: Final = "memor"
"""Part of the name of every tool that reads or writes memory: memory_search, load_memory,
search_memories, memory."""


class MemoryPlace(NamedTuple):
    """Memory of a scope as an extraction needs it."""

    store: Store
    find: Callable[[ReadTxn], int | None]
    """Returns the number of the scope, if anything is stored in it."""
    now_ms: Callable[[], int]
    seed: bytes
    drafts: SessionTxns
    uses: dict[tuple[int, int], int] | None
    owner: tuple[str, str]
    """Application and user."""
    admit: Callable[[dict[str, Any]], Mapping[str, Any]]
    """Returns contents as they may be stored: judged by the guards, and redacted."""
    named: Callable[[str, str], str]
    """Returns a name that may be stored as it is."""
    search: Callable[..., list[MemoryHit]]
    """Ranks the memories by the words of a query."""

    def similar(self, text: str) -> list[Memory]:
        """Return the memories that are most similar to a text, those in quarantine too."""
        query = text[:_QUERY_CHARS]
        if not query.strip():
            return []
        # By words alone: an embedder that fails would send the job to the dead letters.
        found = self.search(query, k=_SIMILAR, statuses=_KNOWN, mode="lexical")
        return [hit.memory for hit in found]


class CandidateOutcome(NamedTuple):
    """Fate of one candidate."""

    text: str
    """Text of the candidate, or the type of what is none."""
    status: str
    """``stored``, ``merged`` (somebody said the same before), ``quarantined`` or ``refused``."""
    reason: str | None = None
    """Reason of a refusal."""
    memory: int | None = None
    """Id of the memory that says it."""


@record(frozen=True, slots=True)
class ExtractionReport:
    """Result of an extraction."""

    session: str
    extractor: str
    """Name and version."""
    items: int
    """Number of items that the extractor was given."""
    outcomes: tuple[CandidateOutcome, ...]
    """One for each candidate, in order."""
    upto: int | None
    """Seq up to which the session has been read now; None: nothing was left to read."""
    error: str | None = None
    """Failure of the last attempt, which is made again later; None: there was none."""

    @property
    def stored(self) -> int:
        """Number of candidates that became new memories, in quarantine too."""
        return sum(each.status in ("stored", "quarantined") for each in self.outcomes)


class Unread(NamedTuple):
    """Part of a session that an extractor has not read."""

    last: int
    """Seq of the last item; 0: everything was read."""
    turns: int
    """Number of items of the user."""
    updated_ms: int
    """Time of the last change of the session."""
    failed: bool
    """True if it was judged as failed since it was read last."""
    confidence: float | None
    """Lowest confidence of a judgement since then."""


# --- Reading: what an extractor is given ----------------------------------------------------------


class _Material(NamedTuple):
    """Items of a job, read from one snapshot."""

    epoch: int
    upto: int
    """Seq up to which the session was read."""
    texts: tuple[GivenText, ...]
    proofs: Mapping[tuple[int, int], bytes]
    """Beginning of each item's row, with its checksum, by owner and seq."""

    @property
    def given(self) -> list[GivenText]:
        """The texts that the extractor sees, without their neighbours."""
        return [each for each in self.texts if each.number is not None]


def live_history(txn: ReadTxn, scope: int, session: int) -> tuple[Head, History] | None:
    """Return the head and the live history of a session; None if it was deleted."""
    key = head_key(scope, session)
    value = txn.get(key)
    head = None if value is None else Head.unpack(key, value)
    if head is None or head.hidden:
        return None
    return head, History(head.all_segments(txn, scope))


def _gather(txn: ReadTxn, scope: int, row: JobRow, last: int) -> _Material | None:
    """Read a job's items up to a seq, as many as are given at once; None without the session.

    Raises:
        CorruptValueError: an item is damaged.
    """
    found = live_history(txn, scope, row.session)
    if found is None:
        return None
    head, history = found
    first, stop = history.position_from(row.first), history.position_from(last + 1)
    start, end = max(first - _BEFORE, 0), min(stop, first + SCANNED_MAX)
    texts: list[GivenText] = []
    proofs: dict[tuple[int, int], bytes] = {}
    called: dict[Any, str] = {}
    count, chars, upto = 0, 0, last
    for at, owner, lo, hi in history.spans(start, end):
        for each in read_rows(txn, scope, owner, position=at, lo=lo, hi=hi):
            if isinstance(each, CorruptValueError):
                raise each
            made = text_in_row(txn, scope, each, called)
            if made is None:
                continue
            is_given = each[0] >= first
            size = len(made.text)
            if is_given and count and (count == ITEMS_MAX or chars + size > CHARS_MAX):
                return _Material(head.epoch, each[1] - 1, tuple(texts), proofs)
            if is_given:
                count, chars = count + 1, chars + size
            value = txn.get(keys.session_row(scope, owner, Row.ITEM, each[1]))
            proofs[owner, each[1]] = bytes((value or b"")[:HEADER_BYTES])
            texts.append(made._replace(place=each[0], number=count if is_given else None))
    if end < stop:
        upto = history.seq_at(end) - 1
    return _Material(head.epoch, upto, tuple(texts), proofs)


def text_in_row(
    txn: ReadTxn, scope: int, row: tuple[int, int, int, bytes], called: dict[Any, str]
) -> GivenText | None:
    """Return the text of an item that may be extracted; None if it has none.

    System prompts, events and reasoning are nobody's statement. Tools of memory, and blocks that
    ``Recall`` showed, would be learned again. What is not in the row itself is a document.

    Args:
        txn: the snapshot.
        scope: the scope.
        row: the item's row.
        called: names of the tools that earlier items called; completed here.
    """
    if row[3][0] not in _TOLD or row[2] & FLAG_BLOB:
        return None
    item = opened(txn, scope, row)[0]
    names_called = call_names(item.message)
    called.update(names_called)
    if any(_is_of_memory(name) for name in names_called.values()):
        return None
    text, own, pasted = _texts_of(item, called)
    if (
        not text.strip()
        or len(text) > ITEM_CHARS_MAX
        or text.strip() == EXPIRED_TEXT
        or HEADING in text
        or (OPENING in text and CLOSING in text)
        or _SHOWN.search(text)
    ):
        return None
    return GivenText(item.seq, 0, None, by_of_item(item), own, pasted, item.created_at, text)


_SHOWN: Final = re.compile(r"^- memory \d+ \(\d{4}-\d\d-\d\d, ", re.MULTILINE)
"""Beginning of a line that ``Recall`` rendered."""
_TOLD: Final = (ItemKind.USER, ItemKind.ASSISTANT, ItemKind.CALL, ItemKind.RESULT)
_ROLES: Final = {"user": "user", "tool": "tool"}


def _texts_of(item: Item, called: Mapping[Any, str]) -> tuple[str, str, str]:
    """Return the text of an item, the words in it that are its author's, and those pasted."""
    if item.kind == ItemKind.USER:
        texts = own_texts(item.message)[0]
        return ("\n".join(texts), *split_pasted(texts))
    told: list[str] = []
    if item.kind == ItemKind.RESULT:
        results = results_of(item.message)
        tools = [result.name or called.get(result.key, "") for result in results]
        if not all(tools) or any(map(_is_of_memory, tools)):  # an unknown one may be of memory
            return "", "", ""
        told = [result.text for result in results]
    text = "\n".join([*told, *(each.text for each in texts_of(item.message))])
    return text, text, ""


def _is_of_memory(tool: str) -> bool:
    return _MEMORY_TOOL in tool.casefold()


def _is_unchanged(txn: ReadTxn, scope: int, row: JobRow, material: _Material) -> bool:
    """Return True if the items of a job, and those around it, are as they were read.

    What rewrites an item, such as an expiry or a redaction, begins another epoch.
    """
    found = live_history(txn, scope, row.session)
    if found is None:
        return False
    return found[0].epoch == material.epoch or all(
        (txn.get(keys.session_row(scope, owner, Row.ITEM, seq)) or b"")[:HEADER_BYTES] == proof
        and found[1].owner_of(seq) == owner
        for (owner, seq), proof in material.proofs.items()
    )


def unread(txn: ReadTxn, scope: int, session: int, who: ExtractorId) -> Unread | None:
    """Return what an extractor has not read of a session; None if it was deleted.

    Raises:
        CorruptValueError: a row is damaged.
    """
    found = live_history(txn, scope, session)
    if found is None:
        return None
    head, history = found
    covered = jobs.covered_to(txn, scope, session, who)
    start = max(history.position_from(covered + 1), history.count - _TURNS_MAX)
    last = history.seq_at(history.count - 1) if history.count else 0
    turns = 0
    for _, owner, lo, hi in history.spans(start, history.count):
        for row in index.records(txn, scope, owner, lo, hi):
            turns += row[index.RECORD.size] == ItemKind.USER
    since = jobs.watermark_of(txn, scope, session, who).at_ms
    judgements = [each for each in outcomes_of(txn, scope, session) if each.at_ms > since]
    told = [each.confidence for each in judgements if each.confidence is not None]
    return Unread(
        last if last > covered else 0, turns, head.updated_ms,
        any(not each.passed for each in judgements), min(told, default=None),
    )  # fmt: skip


def updated_between(
    txn: ReadTxn, scope: int, times_ms: tuple[int, int], after: str | None, most: int
) -> tuple[list[str], str | None]:
    """Return a page of a scope's sessions that changed last between two times, by name.

    Returns:
        The names, and the last name that was looked at; None behind the last page.
    """
    found: list[str] = []
    last: str | None = None
    for looked, (name, session) in enumerate(names.sessions(txn, scope, after)):
        if looked == most:
            return found, last
        last = name
        with suppress(CorruptValueError):  # check() reports it
            told = live_history(txn, scope, session)
            if told is not None and times_ms[0] <= told[0].updated_ms < times_ms[1]:
                found.append(name)
    return found, None


# --- Running: lease, call, judge, commit ----------------------------------------------------------


class _JobResult(NamedTuple):
    """Result of one job."""

    items: int = 0
    outcomes: tuple[CandidateOutcome, ...] = ()
    upto: int | None = None
    error: str | None = None


def extract(
    place: MemoryPlace,
    session: str,
    extractor: Extractor | None,
    *,
    upto: int | None,
    kinds: Iterable[str] | None,
    early: bool = True,
) -> ExtractionReport:
    """Read what an extractor has not read of a session; return what came of it.

    ``early``: a failed job is done again at once, without the pause after its last attempt.

    Raises:
        NotFoundError: there is no such session.
        InvalidOptionError, InvalidItemError: the extractor has no name or version, or there is no
            such kind.
        OptedOutError, StorageError
    """
    extractor, consented = extractor_or_rules(extractor), checked_kinds(kinds)
    who = ExtractorId.of(extractor)
    row = _ask(place, session, who, upto)
    last = 0 if row is None else min(row.last, upto or row.last)
    parts: list[_JobResult] = []
    while row is not None:
        leased = _take_job(place, row, early=early)
        if leased is None:
            told = "the job is another's, waits or is dead, or memory is being cleared: see jobs()"
            parts.append(_JobResult(error=told))
            break
        parts.append(_run_job(place, extractor, leased, kinds=consented, upto=upto))
        if parts[-1].error is not None or (parts[-1].upto or last) >= last:
            break
        row = _ask(place, session, who, last)
    if not parts or parts[-1].error is None:
        parts += _revived(place, extractor, (session, who, upto), early=early, kinds=consented)
    return _reported(session, who, parts)


def _revived(
    place: MemoryPlace,
    extractor: Extractor,
    what: tuple[str, ExtractorId, int | None],
    *,
    early: bool,
    kinds: Collection[str],
) -> Iterator[_JobResult]:
    """Do the jobs of a session that were dead and are to be tried again; yield their results."""
    session, who, upto = what
    for row in pending_rows(place, who, session=session, early=early):
        if upto is None or row.last <= upto:
            leased = _take_job(place, row, early=early)
            if leased is not None:
                yield _run_job(place, extractor, leased, kinds=kinds)


def run_row(
    place: MemoryPlace, extractor: Extractor, row: JobRow, *, kinds: Collection[str]
) -> ExtractionReport | None:
    """Do one waiting job; None if somebody else was faster.

    Raises:
        OptedOutError, StorageError
    """
    leased = _take_job(place, row, early=False)
    if leased is None:
        return None
    return _reported(row.name, row.who, [_run_job(place, extractor, leased, kinds=kinds)])


def _reported(session: str, who: ExtractorId, parts: list[_JobResult]) -> ExtractionReport:
    marks = [each.upto for each in parts if each.upto is not None]
    return ExtractionReport(
        session, who.label, sum(each.items for each in parts),
        tuple(outcome for each in parts for outcome in each.outcomes),
        max(marks, default=None), parts[-1].error if parts else None,
    )  # fmt: skip


def extractor_or_rules(extractor: Extractor | None) -> Extractor:
    """Return an extractor; the rules without a model if there is none."""
    if extractor is not None:
        return extractor
    from memcore.memory.rules import RuleExtractor  # noqa: PLC0415 - compiles many patterns

    return RuleExtractor()


def checked_kinds(kinds: object) -> frozenset[str]:
    """Return kinds of statements, checked; None: all.

    Raises:
        InvalidOptionError: there is no such kind, or it is a text instead of several.
    """
    if kinds is None:
        return frozenset(KINDS)
    return frozenset(checked_choices("kinds", kinds, KINDS))


def list_jobs(place: MemoryPlace) -> list[ExtractionJob]:
    """List a scope's jobs; none if the user opted out.

    Raises:
        CorruptValueError: a row is damaged.
    """

    def look(txn: ReadTxn) -> list[ExtractionJob]:
        scope = place.find(txn)
        if scope is None or is_opted_out(txn, scope):
            return []
        return [jobs.job_of(txn, scope, row) for row in jobs.jobs_in(txn, scope)]

    return place.store.read(look)


def retry_job(place: MemoryPlace, job: ExtractionJob) -> ExtractionJob:
    """Let a job be done at once, with all its attempts; return it.

    Raises:
        NotFoundError: it is gone.
        InvalidOptionError: it is no job, or it is leased.
        OptedOutError
    """
    if not isinstance(job, ExtractionJob):
        msg = f"job: expected an ExtractionJob, got {type(job).__name__}"
        raise InvalidOptionError(msg)

    def closure(txn: Txn) -> ExtractionJob:
        scope = place.find(txn)
        session = None if scope is None else names.session_of(txn, scope, job.session)
        if scope is None or session is None:
            msg = f"there is no session {job.session[:80]!r}"
            raise NotFoundError(msg)
        need_wanted(txn, scope)
        book = Book(txn, scope, place.seed)
        row = jobs.revive(book, jobs.key_of_job(book, job, session), place.now_ms())
        return jobs.job_of(txn, scope, row)

    return place.store.transact(closure)


def _ask(place: MemoryPlace, name: str, who: ExtractorId, upto: int | None) -> JobRow | None:
    """Make the job of what a session has that was not read; None if nothing is left.

    Raises:
        NotFoundError: there is no such session.
        OptedOutError
    """

    def look(txn: ReadTxn) -> tuple[int, int, int] | None:
        scope = place.find(txn)
        session = None if scope is None else names.session_of(txn, scope, name)
        found = None if scope is None or session is None else live_history(txn, scope, session)
        if scope is None or session is None or found is None:
            msg = f"there is no session {name[:80]!r}"
            raise NotFoundError(msg)
        need_wanted(txn, scope)
        history = found[1]
        last = history.seq_at(history.count - 1) if history.count else 0
        last = last if upto is None else min(last, upto)
        is_read = last <= jobs.covered_to(txn, scope, session, who)
        return None if is_read else (scope, session, last)

    if place.store.read(look) is None:  # the usual case costs no commit
        return None

    def ask(txn: Txn) -> JobRow | None:
        found = look(txn)
        if found is None:
            return None
        scope, session, last = found
        book = Book(txn, scope, place.seed, place.uses)
        return jobs.enqueue(book, (session, name), who, last, place.now_ms())

    return place.store.transact(ask)


def _take_job(place: MemoryPlace, row: JobRow, *, early: bool) -> JobRow | None:
    """Lease a job; None if it is another's, waits or is dead now."""
    token = os.urandom(16).hex()

    def closure(txn: Txn) -> JobRow | None:
        scope = place.find(txn)
        if scope is None:
            return None
        need_wanted(txn, scope)
        if is_clearing(txn, scope):  # which removes the job, when it is continued
            return None
        book = Book(txn, scope, place.seed)
        return jobs.lease(book, row, place.now_ms(), token, early=early)

    return place.store.transact(closure)


def _run_job(
    place: MemoryPlace,
    extractor: Extractor,
    row: JobRow,
    *,
    kinds: Collection[str],
    upto: int | None = None,
) -> _JobResult:
    """Do a leased job; whatever the extractor does, the job is done or has one failed attempt.

    ``upto``: the last seq to read; None: that of the job.

    Raises:
        OptedOutError, StorageError: the lease ends by itself.
    """
    material = None
    try:
        scope = place.store.read(place.find)
        if scope is not None:
            last = min(row.last, upto or row.last)
            material = place.store.read(lambda txn: _gather(txn, scope, row, last))
        if material is None:
            return _JobResult(error="the session was deleted")
        verdicts = _asked(place, extractor, row.who, material, kinds)
        return _stored(place, row, material, verdicts)
    except (OptedOutError, KeyboardInterrupt):
        _settle(place, row, lambda book, known: jobs.give_back(book, known, place.now_ms()))
        raise
    except SystemExit as exc:  # of the extractor: the next attempt may end the process as well
        _failed(place, row, material, exc)
        raise
    except CorruptValueError as exc:
        return _failed(place, row, material, exc)
    except _ExtractorFailed as failed:
        return _failed(place, row, material, failed.error)


class _ExtractorFailed(Exception):  # noqa: N818 - a signal inside this module
    """An extractor raised something, or returned something else than candidates."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _failed(
    place: MemoryPlace, row: JobRow, material: _Material | None, exc: BaseException
) -> _JobResult:
    """Record a failed attempt: the type of its error. The caller is told the text as well.

    The text may hold content, and the row neither expires nor is redacted with its items.
    """
    reason = _told_briefly(exc)
    upto = row.last if material is None else material.upto
    if material is None:
        upto = min(row.last, row.first + ITEMS_MAX - 1)

    def change(book: Book, known: JobRow) -> None:
        jobs.fail(book, known, upto, reason, place.now_ms())

    _settle(place, row, change)
    return _JobResult(0 if material is None else len(material.given), error=_told(place, exc))


def _told_briefly(exc: BaseException) -> str:
    """Return an error as it may be stored, without content."""
    kind = shown_name(type(exc).__name__)
    if isinstance(exc, ExtractorError) and exc.reason in _ENDS:
        return f"{kind}: {exc.reason}"
    return kind


def _told(place: MemoryPlace, exc: BaseException) -> str:
    """Return an error as the caller is told it: guarded and redacted, but with its text."""
    kind = shown_name(type(exc).__name__)
    with suppress(MemcoreError):
        said = shown_name(" ".join(str(exc).split())[:_SAID_CHARS])
        return f"{kind}: {place.admit({'reason': said})['reason']}" if said else kind
    return kind


def _settle(place: MemoryPlace, row: JobRow, change: Callable[[Book, JobRow], None]) -> None:
    """Change a job whose lease is still held."""

    def closure(txn: Txn) -> None:
        scope = place.find(txn)
        if scope is not None:
            book = Book(txn, scope, place.seed)
            known = jobs.need_lease(book, row)
            if known is not None:
                change(book, known)

    place.store.transact(closure)


def _asked(
    place: MemoryPlace,
    extractor: Extractor,
    who: ExtractorId,
    material: _Material,
    kinds: Collection[str],
) -> list[Verdict]:
    """Call an extractor and judge what it yields."""
    given = material.given
    if not given:
        return []
    items = tuple(
        ExtractionItem(
            each.number or 0,
            _ROLES.get(each.by, "assistant"),
            each.text,
            each.at,
        )
        for each in given
    )
    asked = "\n".join(each.own for each in given if each.by == "user") or given[0].own
    similar = tuple(place.similar(asked))
    listed = _called(extractor, Extraction(items, similar, place.now_ms() / 1000))
    ground = Given(material.texts, known=place.owner[1:], kinds=kinds)
    sizes = {each.seq: len(each.text) for each in material.texts}
    room = CITED_CHARS_MAX
    verdicts: list[Verdict] = []
    for each in listed[:CANDIDATES_MAX]:
        verdict = _admitted(place, who, judged(each, ground))
        room -= sum(sizes.get(seq, 0) for seq in verdict.seqs)
        if room < 0:
            verdict = verdict._replace(reason="too many items are cited by all candidates")
        verdicts.append(verdict)
    if len(listed) > CANDIDATES_MAX:
        verdicts.append(Verdict("", reason=f"only {CANDIDATES_MAX} candidates are taken at once"))
    return verdicts


def _called(extractor: Extractor, task: Extraction) -> list[object]:
    """Return the first things that an extractor yields, one more than are taken.

    Raises:
        _ExtractorFailed: it raised something, or returned something else.
    """
    try:
        found: object = extractor(task)
        if inspect.iscoroutine(found):
            found.close()
        if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
            msg = f"the extractor returned {type(found).__name__}, not candidates"
            raise TypeError(msg)
        return list(islice(found, CANDIDATES_MAX + 1))
    except Exception as exc:
        raise _ExtractorFailed(exc) from exc


def _admitted(place: MemoryPlace, who: ExtractorId, verdict: Verdict) -> Verdict:
    """Return a verdict with its contents as they may be stored; outside any transaction."""
    if verdict.reason is not None:
        return verdict
    if is_repeated(verdict, place.similar):
        return verdict._replace(reason="repeats a memory: only the user confirms one")
    values = {**verdict.values, "extractor": who.label}
    try:
        for name in ("subject", "slot", "extractor"):
            if values.get(name) is not None:
                place.named(name, values[name])
        told = place.admit(
            {
                "text": verdict.text,
                "attributes": values["attributes"],
                "labels": values["labels"],
            }
        )
    except (BlockedError, InvalidItemError, InvalidOptionError) as exc:
        return verdict._replace(reason=f"refused: {exc}"[:_SAID_CHARS])
    values |= {"attributes": told["attributes"], "labels": told["labels"]}
    return verdict._replace(text=str(told["text"]), values=values)


def _stored(
    place: MemoryPlace, row: JobRow, material: _Material, verdicts: Iterable[Verdict]
) -> _JobResult:
    """Store what was judged to be true, move the watermark and remove the job, in one commit."""

    def closure(txn: Txn) -> _JobResult:
        scope = place.find(txn)
        if scope is None:
            return _JobResult(error="the session was deleted")
        need_wanted(txn, scope)
        book = Book(txn, scope, place.seed, place.uses)
        known = jobs.need_lease(book, row)
        if known is None:
            return _JobResult(error="the lease of the job ran out, and somebody else has it")
        now_ms = place.now_ms()
        if is_clearing(txn, scope):  # what was said before it may not be learned after it
            jobs.give_back(book, known, now_ms)
            return _JobResult(len(material.given), error="the memory is being cleared")
        if not _is_unchanged(txn, scope, row, material):
            reason = "its items were changed meanwhile"
            jobs.fail(book, known, material.upto, reason, now_ms)
            return _JobResult(len(material.given), error=reason)
        name = _name_of(txn, scope, row)
        outcomes = tuple(_remembered(place, book, name, each, now_ms) for each in verdicts)
        jobs.finish(book, known, material.upto, now_ms)
        return _JobResult(len(material.given), outcomes, material.upto)

    return place.store.transact(closure)


def _name_of(txn: ReadTxn, scope: int, row: JobRow) -> str:
    return jobs.job_of(txn, scope, row).session


def _remembered(
    place: MemoryPlace, book: Book, session: str, verdict: Verdict, now_ms: int
) -> CandidateOutcome:
    """Store one statement; what does not hold any more is refused before anything is written."""
    shown = verdict.text[:_SAID_CHARS]
    if verdict.reason is not None:
        return CandidateOutcome(shown, "refused", verdict.reason)
    sources = (Source(session, verdict.seqs),)
    try:
        next_id = read_head(book.txn, book.scope).next_id
        said = Statement(verdict.text, sources, verdict.by, verdict.values, is_limit=True)
        record = remember(book, place.drafts, said, now_ms)
    except (NotFoundError, InvalidOptionError) as exc:
        return CandidateOutcome(shown, "refused", str(exc)[:_SAID_CHARS])
    if record.is_gone:
        return CandidateOutcome(shown, "refused", "it was forgotten before", record.id)
    status = "merged" if record.id < next_id else "stored"
    if status == "stored" and record.status == "quarantined":
        status = "quarantined"
    return CandidateOutcome(shown, status, None, record.id)


def pending_rows(
    place: MemoryPlace, who: ExtractorId, *, session: str | None = None, early: bool = False
) -> list[JobRow]:
    """Return the jobs of an extractor in a scope, or a session, that may be leased now.

    ``early``: without the pause after a failed attempt.
    """

    def look(txn: ReadTxn) -> list[JobRow]:
        scope = place.find(txn)
        number = None
        if scope is not None and session is not None:
            number = names.session_of(txn, scope, session)
        if scope is None or (session is not None and number is None):
            return []
        return jobs.leasable(txn, scope, who, place.now_ms(), session=number, early=early)

    return place.store.read(look)
