"""Import: restores sessions with their seqs, times, events and views.

Items are committed some hundreds at a time. A session that fits into one commit appears atomically;
a larger one is built under a temporary name and renamed in its last commit, so neither a reader nor
a crash ever sees half a session under its name. Until then a flag in its head marks it as an
import's, and only flagged sessions are ever removed: the next import into the scope that comes an
hour or more after the last commit of a killed import removes what that left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from memcore._fast import classify
from memcore.blobs import StagedBlobLost
from memcore.errors import (
    CallerError,
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    ReadOnlyError,
    StorageError,
)
from memcore.exchange.incoming import (
    LEFTOVER_AGE_MS,
    UNFINISHED,
    Incoming,
    LoadedItem,
    PartDiffers,
    Place,
    StoredTwin,
    place_of,
)
from memcore.exchange.lines import (
    FORMATS,
    Conversation,
    StandIns,
    Title,
    is_expired,
    is_part,
    is_title,
    parse_line,
    refuse,
    root_in,
    write_arrived,
)
from memcore.exchange.memory import (
    ArrivedMemory,
    arrived_memory,
    begins_alike,
    import_memories,
    is_memory,
    link_memories,
    note_family,
)
from memcore.exchange.state import Owner, import_shared, is_shared
from memcore.log import (
    Head,
    Prepared,
    SessionTxn,
)
from memcore.model import View
from memcore.options import (
    checked_callable,
    checked_choice,
    checked_several,
    counted,
    need_instance,
)
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import FLAG_UNFINISHED, head_key
from memcore.rows.lifecycle import (
    ARCHIVED,
    Terms,
    read_lease,
    read_terms,
    session_terms,
    write_terms,
)
from memcore.rows.views import StoredView, write_view
from memcore.session import Engine, SessionOptions, SessionRef, resume_removals, start_removal
from memcore.session.append import PLAIN, Append, encode_items, stage, store, unreadable
from memcore.session.read import iter_items
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter
from memcore.wire import policy_name
from memcore.wire.convert import policy_of

__all__ = [
    "ImportListener",
    "ImportOptions",
    "Imported",
    "ParsedLine",
    "import_lines",
    "remove_leftovers",
    "remove_unfinished",
]


# --- What imports that are dead left behind -------------------------------------------------------


def remove_leftovers(engine: Engine, app: str, user: str) -> None:
    """Remove what imports that are presumed dead left in the scope."""
    silent_since = engine.now_ms() - LEFTOVER_AGE_MS

    def leftovers(txn: ReadTxn) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        scope = names.scope_of(txn, app, user)
        if scope is None:
            return found
        for name, session in names.sessions(txn, scope, UNFINISHED):
            if not name.startswith(UNFINISHED):
                break
            if _is_unfinished(txn, scope, session, silent_since):
                found.append((scope, session, name))
        return found

    for place in engine.store.read(leftovers):
        remove_unfinished(engine, *place, silent_since=silent_since)


def remove_unfinished(
    engine: Engine, scope: int, session: int, name: str, *, silent_since: int | None = None
) -> None:
    """Remove a session that an import did not finish; never another one of that name.

    ``silent_since``: only if the import committed nothing after this time, in milliseconds.
    """

    def closure(txn: Txn) -> None:
        if names.session_of(txn, scope, name) != session:
            return
        if _is_unfinished(txn, scope, session, silent_since):
            start_removal(txn, engine, scope, name, finished=False)

    engine.store.transact(closure, makes_room=True)
    resume_removals(engine.store)


def _is_unfinished(txn: ReadTxn, scope: int, session: int, silent_since: int | None) -> bool:
    key = head_key(scope, session)
    value = txn.get(key)
    with suppress(CorruptValueError):  # check() reports a damaged head
        head = None if value is None else Head.unpack(key, value)
        if head is not None and head.unfinished:
            return silent_since is None or head.updated_ms <= silent_since
    return False


# --- Reading of lines: exported sessions with their seqs, times, events and views; conversations --

COMMIT_ITEMS_MAX: Final = 1000
COMMIT_BYTES_MAX: Final = 4 * 1024**2
_COMMIT_MEMORIES: Final = 128
_STAGE_ATTEMPTS: Final = 8
_ALIKE_MAX: Final = 16
"""Most sessions of the same figures that one under another name is compared with: sessions of one
millisecond are few, but a file may hold many."""
_CONFLICTS: Final = ("error", "skip", "rename", "append")
_EXPORTS_WAYS: Final = _CONFLICTS[1:3]
"""Ways out for a session of an export, which is whole."""
Rename: TypeAlias = Callable[[Title], Title]
Figures: TypeAlias = tuple[int, int, int]


@record(slots=True)
class Imported:
    """Result of an import."""

    sessions: int = 0
    """Exported sessions."""
    conversations: int = 0
    """Sessions from lines of messages, including those that messages were appended to."""
    items: int = 0
    aside: int = 0
    """Items outside the live histories, without those that stand for undone ones not exported."""
    views: int = 0
    skipped: int = 0
    """Sessions that already existed, identical."""
    renamed: int = 0
    """Sessions stored under another name, because another one had theirs."""
    shared: int = 0
    """States of users and applications."""
    memories: int = 0
    """Long-term memories, with their versions."""
    expired: int = 0
    """Lines of an archive for what no import restores: expired entries, fields and memories."""
    calls: int = 0
    """Calls in conversations; the next two counts are of conversations, too."""
    open_calls: int = 0
    orphans: int = 0
    """Results without their call."""
    left_out: list[str] = field(default_factory=list)
    """Sessions skipped because another one had their name (``on_conflict="skip"``), each with the
    line."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Fields of conversations that have no place in a session, by name."""
    unreadable: list[str] = field(default_factory=list)
    """Conversations with items that are no message of any format, stored as they are: each with the
    line and the first of them."""
    failures: list[str] = field(default_factory=list)
    """Sessions that were not imported, each with the line and the reason."""


class ParsedLine(NamedTuple):
    """A line that never was text: its value, and about how many bytes it would have."""

    value: Any
    size: int


class ImportListener(Protocol):
    """Listener of an import whose lines are made from another source."""

    def where(self, line: int) -> str:
        """Return the place in the source of a line, for messages."""

    def settled(self, line: int, place: Place) -> None:
        """Note that the session of a title is stored, now or before, and under which name."""


@record(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import; see ``Database.import_``.

    Raises:
        InvalidOptionError: an option is out of range.
    """

    rename: Rename | None = None
    counter: TokenCounter | None = None
    format: str = "auto"
    policy: str | None = None
    orphans: str = "keep"
    on_conflict: str = "error"
    unnamed: str = "line"
    listener: ImportListener | None = None

    def where(self, line: int) -> str:
        """Return the place of a line, for messages."""
        return f"line {line}" if self.listener is None else self.listener.where(line)

    def __post_init__(self) -> None:
        checked_choice("format", self.format, ("auto", *FORMATS))
        checked_choice("orphans", self.orphans, ("keep", "raise"))
        checked_choice("on_conflict", self.on_conflict, _CONFLICTS)
        checked_callable("rename", self.rename)
        names.check_name(self.unnamed, "unnamed")
        if self.policy is not None:
            policy_name(self.policy)


def import_lines(
    engine: Engine, lines: Iterable[bytes | str | ParsedLine], options: ImportOptions
) -> Imported:
    """Store exported sessions, or conversations; those that fail are listed.

    Raises:
        InvalidOptionError: a line is neither bytes nor text.
        ReadOnlyError, StorageError
    """
    checked_several("lines", lines, "an open file, or its lines")
    if engine.store.read_only:
        msg = "the database is open read-only; open it for writing"
        raise ReadOnlyError(msg)
    if options.counter is not None:
        engine.counters.setdefault(options.counter.id, options.counter)
    return _Import(engine, options).run(lines)


class _Lost(Exception):  # noqa: N818 - a signal, listed as a failure
    """The sessions' names were taken, or their stored parts removed, in the meantime."""

    def __init__(self, sessions: list[Incoming], text: str) -> None:
        super().__init__(text)
        self.sessions = sessions


@record(slots=True)
class _Part:
    """Part of a session that one commit stores."""

    session: Incoming
    entries: list[LoadedItem]
    is_last: bool


class _StoredPart(NamedTuple):
    """A stored session that is made of parts."""

    name: str
    number: tuple[int, int]
    """Scope and session."""
    head: Head


class _Import:
    """One run over the lines."""

    def __init__(self, engine: Engine, options: ImportOptions) -> None:
        self.engine = engine
        self.options = options
        self.done = Imported()
        self.scopes: set[tuple[str, str]] = set()
        """Apps and users seen so far."""
        self.stand_ins = StandIns()
        self.session: Incoming | None = None
        """The exported session being read."""
        self.began = 0
        """Number of the line where it, or the last one, began."""
        self.whole: dict[Place, Incoming] = {}
        """Sessions read completely, waiting for the commit."""
        self.names_tried: dict[Place, int] = {}
        """Number of a session's alternative names that are taken."""
        self.renamed: dict[Place, dict[Figures, list[Place]]] = {}
        """Sessions under alternative names, by the name that they would have and their figures."""
        self.memories: list[ArrivedMemory] = []
        """Memories waiting for their commit."""
        self.places: dict[Place, Place | None] = {}
        """Places here of the file's sessions; None: they are not stored, or not yet."""
        self.origins: dict[Place, Place] = {}
        """Names in the file of the sessions that are being imported."""
        self.forks: dict[Place, str | None] = {}
        """Root of each fork of the file, by their names there; None: it was deleted."""
        self.parts: dict[tuple[Place, int], Place] = {}
        """Sessions that parts of a session were stored in, by its name in the file and its time."""
        self.forks_noted = 0
        """Number of forks that were stored when their roots were noted last."""
        self.is_stored = False
        """True if the last search for a free name found the session itself."""
        self.twin: StoredTwin | None = None
        """The stored session that it found, if its lines have to be compared."""
        self.others: set[Place] = set()
        """Stored sessions that turned out to be others than the one being read."""
        self.size = 0
        """Bytes of the line that was read last."""
        self.items = 0
        self.bytes = 0
        """Bytes waiting for the commit."""

    def run(self, lines: Iterable[bytes | str | ParsedLine]) -> Imported:
        """Read all lines; commit whenever enough was read."""
        for number, line in enumerate(lines, 1):
            if isinstance(line, str):  # of a file opened as text
                line = _encoded(line)  # noqa: PLW2901 - what it is from here
            if not isinstance(line, bytes | ParsedLine):
                msg = f"lines: expected bytes or str, got {type(line).__name__}"
                raise InvalidOptionError(msg)
            if isinstance(line, bytes) and not line.strip():
                continue
            self.stand_ins.pay()
            self.size = len(line) if isinstance(line, bytes) else line.size
            try:
                self._take(parse_line(line) if isinstance(line, bytes) else line.value, number)
            except CallerError as error:
                if self.session is None:
                    self._fail(number, None, error)
                else:
                    self._give_up(self.session, number, error)
                    self.session = None
                continue
            self._count(self.size)
        self._end()
        self._commit()
        self._commit_memories()
        self._link_memories()
        return self.done

    # --- lines ------------------------------------------------------------------------------------

    def _take(self, found: Any, number: int) -> None:
        """Handle one line: of an exported session, of a shared state, or a conversation."""
        form = self.options.format
        if form in ("auto", "jsonl") and is_title(found):
            self._end()
            self.began = number
            self.session = self._begin(found, number)
        elif self.session is not None:
            self._take_part(found)
        elif is_expired(found):
            self.done.expired += 1
        elif form == "jsonl" or is_part(found):
            if not self.began:  # reported only once
                self.began = number
                refuse("expected the line that begins a session")
        else:
            self._converse(found, number)

    def _take_part(self, found: Any) -> None:
        """Handle a line of the session being read; compare it if the session may be stored."""
        # Each session that turns out to be another one adds its lines in front of those left.
        left: list[Iterator[tuple[Any, int]]] = [iter([(found, 0)])]
        size = self.size
        while left:
            following = next(left[-1], None)
            if following is None:
                left.pop()
                continue
            session = self.session
            if session is None:
                return
            try:
                session.take(following[0])
            except PartDiffers:
                if self.options.on_conflict != "rename":
                    raise
                self._take_elsewhere(session, following[0])
                session = self.session
                if session is None:
                    return
            self.items += 1
            twin = session.twin
            if twin is not None and not self._agrees(
                twin, session, following[0], following[1] or size
            ):
                left += [iter([following]), twin.agreeing()]
                self.others.add(twin.place)
                self.session = None
                self.session = self._placed(twin.wanted, twin.origin, session.line)
            elif following[1]:
                self._count(following[1])

    def _agrees(self, twin: StoredTwin, session: Incoming, found: Any, size: int) -> bool:
        """Compare a line; with ``on_conflict="rename"`` a damaged session is another one."""
        try:
            return twin.agrees(session, found, size)
        except InvalidItemError:
            if self.options.on_conflict != "rename":
                raise
            return False

    def _end(self) -> None:
        """Give up the session being read: no more of its lines follow."""
        session, self.session = self.session, None
        if session is not None:
            self._give_up(session, self.began, _cut_short(session))

    def _count(self, size: int) -> None:
        """Count a line that was taken; commit if enough is pending."""
        self.bytes += size
        session = self.session
        if session is not None and not session.lines_left:
            self.session = None
            if session.begun >= session.title.next_seq:  # a part that is there already
                self.done.skipped += 1
                place = place_of(session.title)
                self._settle(self.origins.pop(place, place), place, session.line)
            elif session.twin is not None:
                self.done.skipped += 1
                self._settle(session.twin.origin, session.twin.place, session.line)
            else:
                session.finish()
                self.whole[place_of(session.title)] = session
        if self.items >= COMMIT_ITEMS_MAX or self.bytes >= COMMIT_BYTES_MAX:
            self._commit()
            if self.session is not None and self.session.is_given_up:
                self.session = None

    def _begin(self, found: Mapping[str, Any], line: int) -> Incoming | None:
        """Begin the session of a title; None if it exists already, or if it stands beside them."""
        if is_shared(found):
            import_shared(self.engine, found, self._renamed)
            self.done.shared += 1
            return None
        if is_memory(found):
            self.memories.append(arrived_memory(self.engine, found, line, self._renamed))
            if len(self.memories) >= _COMMIT_MEMORIES:
                self._commit_memories()
            return None
        said = Title.of(found)
        self.places.setdefault(place_of(said), None)
        root = root_in(found)
        if root is not None:
            self.forks[place_of(said)] = root[0]
        title = self._named(said)
        policy_name(title.policy)
        self._need_no_rules()
        if (title.app, title.user) not in self.scopes:
            self.scopes.add((title.app, title.user))
            remove_leftovers(self.engine, title.app, title.user)
        self.others.clear()
        return self._placed(title, place_of(said), line)

    def _placed(self, title: Title, origin: Place, line: int) -> Incoming | None:
        """Begin a session under a free name, or beside the stored one that it may be.

        None if it is left out.
        """
        if title.part:
            return self._continued(title, origin, line)
        counter = self.options.counter or self.engine.counter_named(title.counter)
        self.twin = None
        free = self._free(title, line, self._is_like)
        twin = self.twin
        if free is not None:
            self.origins[place_of(free)] = origin
            return Incoming(free, counter, self.engine, line=line, stand_ins=self.stand_ins)
        if twin is None:
            return None
        twin.wanted, twin.origin = title, origin
        at, stand_ins = replace(title, session=twin.place[2]), StandIns()
        stand_ins.pay(title.gaps)
        session = Incoming(at, counter, self.engine, line=line, stand_ins=stand_ins)
        session.twin = twin
        return session

    def _continued(
        self, title: Title, origin: Place, line: int, tried: frozenset[Place] = frozenset()
    ) -> Incoming | None:
        """Begin a part of a session, behind the parts before it; None if it is left out.

        A session that an earlier import made of its parts has those that were before this one, or
        this one, too: what both have is compared. Not those that were ``tried``.

        Raises:
            InvalidItemError: more than items would follow.
        """
        if title.views or title.checkpoints or title.state:
            refuse("part: expected the title of items alone, got one with views or a state")
        found: list[_StoredPart] = []
        known = self.parts.get((origin, title.created_ms))
        if known is not None and known not in tried:
            at = replace(title, session=known[2])
            if self._is_there_now(at):
                self._finds_part(found, origin, tried, at)
        else:
            is_part = partial(self._finds_part, found, origin, tried)
            free = self._free(title, line, is_part)
            if free is None and not found:
                return None
            at = free or replace(title, session=found[0].name)
        self.parts[origin, title.created_ms] = place_of(at)
        self.origins[place_of(at)] = origin
        if found:
            _, number, head = found[0]
            session = Incoming(
                at, self.engine.counter_named(head.counter), self.engine,
                line=line, stand_ins=self.stand_ins, begun=head.next_seq,
            )  # fmt: skip
            session.number = number
        else:
            counter = self.options.counter or self.engine.counter_named(title.counter)
            session = Incoming(at, counter, self.engine, line=line, stand_ins=self.stand_ins)
        session.part = (title, origin)
        return session

    def _finds_part(
        self, found: list[_StoredPart], origin: Place, tried: frozenset[Place], title: Title
    ) -> bool:
        """Return True if the session of the title's name is made of its parts; add it to a list."""
        if place_of(title) in tried:
            return False

        def look(txn: ReadTxn) -> _StoredPart | None:
            head = _head_of(txn, title)
            scope = names.scope_of(txn, title.app, title.user)
            session = None if scope is None else names.session_of(txn, scope, title.session)
            if head is None or scope is None or session is None:
                return None
            marks = read_terms(txn, session_terms(scope, session)).marks
            is_of_it = marks.get(ARCHIVED) == _digest_of(origin, title.created_ms)
            return _StoredPart(title.session, (scope, session), head) if is_of_it else None

        stored = self.engine.store.read(look)
        if stored is not None:
            found.append(stored)
        return stored is not None

    def _take_elsewhere(self, session: Incoming, found: Mapping[str, Any]) -> None:
        """Give a part that another session has otherwise to the next one, with all its lines."""
        assert session.part is not None  # noqa: S101 - nothing else is compared
        lines, tried = [*session.compared, found], {place_of(session.title)}
        while True:
            self.session = self._continued(*session.part, session.line, frozenset(tried))
            if self.session is None:
                return
            try:
                for each in lines:
                    self.session.take(each)
            except PartDiffers:
                tried.add(place_of(self.session.title))
            else:
                return

    def _need_no_rules(self) -> None:
        """Refuse options for conversations: an exported session is self-contained."""
        given = {
            "policy": self.options.policy is not None,
            "orphans": self.options.orphans != "keep",
            "on_conflict='append'": self.options.on_conflict == "append",
        }
        for name, is_given in given.items():
            if is_given:
                msg = f"{name}: has no meaning for a session of an export; leave it out"
                raise InvalidOptionError(msg)

    def _converse(self, found: Any, line: int) -> None:
        """Prepare the session of a line of messages for the next commit."""
        said, options, engine = Conversation.of(found), self.options, self.engine
        name = f"{options.unnamed}-{line:06d}" if said.name is None else said.name
        policy = options.policy or said.policy or engine.policy
        policy_name(policy)
        if options.format == "auto" and not (options.policy or said.policy):
            policy = policy_of(said.messages, engine.policy)
        for field_name in said.ignored:
            self.done.ignored[field_name] = self.done.ignored.get(field_name, 0) + 1
        counter, now_ms = options.counter or engine.counter, engine.now_ms()
        title = self._named(
            Title(name, said.app, said.user, policy, counter.id, 1, 1, now_ms, now_ms, 0, 0)
        )
        if options.on_conflict == "append" and self._is_there_now(title):
            self._append(title, said.messages, line)
            return
        # A stored session with another policy counts as a different one, which is no error yet.
        rules = SessionOptions(None, options.counter, options.orphans)
        address = SessionRef(engine, title.app, title.user, title.session, rules)
        prepared = encode_items(address, said.messages, PLAIN)
        free = self._free(title, line, lambda title: self._holds(title, prepared), may_append=True)
        if free is None:
            self.done.skipped += self.is_stored
            return
        session = Incoming.of_messages(free, prepared, engine, line=line, orphans=options.orphans)
        self.whole[place_of(free)] = session
        self.items += max(len(prepared), 1)
        self._note_unreadable(prepared, policy, line)

    def _note_unreadable(
        self, prepared: list[Prepared], policy: str, line: int, *, known: int = 0
    ) -> None:
        fault = unreadable(prepared, policy, known=known)
        if fault is not None:
            self.done.unreadable.append(f"{self.options.where(line)}: {fault}")

    def _append(self, title: Title, messages: list[dict[str, Any]], line: int) -> None:
        """Append the messages that an existing session lacks, in a separate commit."""
        rules = SessionOptions(self.options.policy, self.options.counter, self.options.orphans)
        address = SessionRef(self.engine, title.app, title.user, title.session, rules)
        prepared = encode_items(address, messages, PLAIN)
        head = address.peek()
        stored = [item.message for item in iter_items(address, 1, None)]
        if [item.message for item in prepared[: len(stored)]] != stored[: len(prepared)]:
            refuse(f"session {address.name!r} holds other items than the beginning of this line")
        fresh = prepared[len(stored) :]
        if not fresh:
            self.done.skipped += 1
            return
        revision = None if head is None else head.revision
        receipt = store(Append(address, fresh, expected_revision=revision))
        self.done.conversations += 1
        self.done.items += len(fresh)
        self.done.calls += _calls(fresh)
        self.done.open_calls += receipt.open_calls
        policy = self.options.policy or self.engine.policy if head is None else head.policy
        self._note_unreadable(fresh, policy, line, known=len(stored))

    # --- names ------------------------------------------------------------------------------------

    def _named(self, title: Title) -> Title:
        """Return the title with its names after renaming, validated."""
        if self.options.rename is not None:
            title = self.options.rename(title)
            need_instance("rename", title, Title, what="a function that returns the Title")
        for what in ("app", "user", "session"):
            names.check_name(getattr(title, what), what)
        return title

    def _renamed(self, owner: Owner) -> Owner:
        """Return the owner of an imported state after renaming."""
        if self.options.rename is None:
            return owner
        app, user = owner
        title = self.options.rename(Title("", app, user, "", "", 0, 1, 0, 0, 0, 0))
        return title.app, title.user if user else ""

    def _free(
        self,
        title: Title,
        line: int,
        is_same: Callable[[Title], bool],
        *,
        may_append: bool = False,
    ) -> Title | None:
        """Return the title under a name that no other session has; None if it is not to be stored.

        Raises:
            InvalidOptionError: another session has the name, and ``on_conflict`` allows no way out.
        """
        wanted, on_conflict = place_of(title), self.options.on_conflict
        self.is_stored = False
        alike = self.renamed.setdefault(wanted, {}).setdefault(_figures(title), [])
        for place in alike[-_ALIKE_MAX:]:
            other = replace(title, session=place[2])
            if place not in self.others and self._is_there_now(other) and is_same(other):
                self.is_stored = True
                return None
        while self._is_there_now(title):
            self._note_head(wanted, title)
            if is_same(title):
                self.is_stored = True
                return None
            told = (
                f"session {title.session!r} of user {title.user!r} in app {title.app!r} exists "
                "with other content"
            )
            if on_conflict == "skip":
                self.done.left_out.append(f"{self.options.where(line)}: {told}: left out")
                return None
            if on_conflict != "rename":
                ways = _CONFLICTS[1:] if may_append and not self.options.listener else _EXPORTS_WAYS
                msg = (
                    f"{told}: delete it first, or choose what to do by --on-conflict "
                    f"(on_conflict=): {', '.join(ways)}"
                )
                raise InvalidOptionError(msg)
            tried = self.names_tried[wanted] = self.names_tried.get(wanted, 1) + 1
            title = replace(title, session=f"{wanted[2]} ({tried})")
        self.done.renamed += place_of(title) != wanted
        if place_of(title) != wanted:
            alike.append(place_of(title))
        return title

    def _note_head(self, wanted: Place, title: Title) -> None:
        """Note the figures of a stored session that has one of the names for a wanted one."""
        head = self.engine.store.read(lambda txn: _head_of(txn, title))
        if head is not None and place_of(title) != wanted:
            alike = self.renamed[wanted].setdefault(_figures(head), [])
            alike.append(place_of(title))

    def _is_there_now(self, title: Title) -> bool:
        """Return True if the name is taken, after committing a pending session of that name."""
        if place_of(title) in self.whole:
            self._commit()
        return self.engine.store.read(lambda txn: _is_taken(txn, title))

    def _is_like(self, title: Title) -> bool:
        """Return True if the stored session may be the title's: its lines have to be compared."""
        self.twin = None
        if place_of(title) in self.others:
            return False
        counter = self.options.counter or self.engine.counter_named(title.counter)
        try:
            # The lines of another store have no time of their own at which a session changed.
            any_update = self.options.listener is not None
            self.twin = StoredTwin.of(self.engine, title, counter, any_update=any_update)
        except InvalidItemError:
            if self.options.on_conflict != "rename":
                raise
        return self.twin is not None

    def _holds(self, title: Title, prepared: list[Prepared]) -> bool:
        """Return True if the stored session consists of exactly these items."""
        head = self.engine.store.read(lambda txn: _head_of(txn, title))
        if head is None or head.policy != title.policy or head.count != len(prepared):
            return False
        options = SessionOptions(None, None, "keep")
        address = SessionRef(self.engine, title.app, title.user, title.session, options)
        stored = iter_items(address, 1, None)
        return all(
            item.message == wanted.message for item, wanted in zip(stored, prepared, strict=True)
        )

    def _fail(self, number: int, session: Incoming | None, error: Exception) -> None:
        where = f" (session {session.title.session!r})" if session is not None else ""
        self.done.failures.append(f"{self.options.where(number)}{where}: {error}")

    def _give_up(self, session: Incoming, number: int, error: Exception) -> None:
        """Drop a session that cannot be read completely, with its stored parts."""
        self._fail(number, session, error)
        session.is_given_up = True
        if session.number is not None:
            remove_unfinished(self.engine, *session.number, session.growing_name)

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Store what is pending: whole sessions, and a part of the one being read."""
        session = self.session
        parts = [_Part(whole, whole.entries, is_last=True) for whole in self.whole.values()]
        if session is not None and session.entries:
            parts.append(_Part(session, session.entries, is_last=False))
        self.whole, self.items, self.bytes = {}, 0, 0
        for group in _bounded(parts):
            self._store(group)
        if session is not None:
            session.entries = []

    def _store(self, parts: list[_Part]) -> None:
        """Store parts in one commit; very large items are staged first, again if collected."""
        attempts = _STAGE_ATTEMPTS
        while attempts:
            parts = [part for part in parts if not part.session.is_given_up]
            for part in parts:
                stage(part.session.ref, [entry.item for entry in part.entries])
            try:
                self.engine.store.transact(lambda txn, parts=parts: self._write(txn, parts))  # type: ignore[misc]
            except StagedBlobLost:
                attempts -= 1
                continue
            except _Lost as lost:
                for session in lost.sessions:
                    self._give_up(session, session.line, lost)
                continue
            except CallerError as error:  # nothing was stored: retry the others without it
                if len(parts) == 1:
                    self._give_up(parts[0].session, parts[0].session.line, error)
                    return
                for part in parts:
                    self._store([part])
                return
            for part in parts:
                self._tell(part)
            return
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    def _commit_memories(self) -> None:
        """Store the memories that are pending, and before them the sessions that they rest on."""
        self._commit()
        self._note_roots()
        pending, self.memories = self.memories, []
        if pending:
            self._store_memories(
                [(each, {name: self._here(each, name) for name in each.names}) for each in pending]
            )

    def _note_roots(self) -> None:
        """Note which of the stored sessions have one root: forks arrive as sessions of their own.

        Forks whose root was deleted, so that it has no name, count as forks of one.
        """
        stored = [each for each in self.forks if self.places.get(each) is not None]
        if len(stored) == self.forks_noted:
            return
        self.forks_noted = len(stored)
        families: dict[tuple[str, str, str | None], set[Place]] = {}
        for each in stored:
            root, seen = self.forks[each], {each}
            while root is not None and (above := (*each[:2], root)) in self.forks:
                if above in seen:
                    break  # nobody was forked from itself
                seen.add(above)
                root = self.forks[above]
            family = families.setdefault((*each[:2], root), set())
            if root is not None:
                seen.add((*each[:2], root))
            places = (self._of_family(each, one) for one in seen)
            family.update(place for place in places if place is not None)
        for family in families.values():
            if len(family) > 1:
                note_family(self.engine, family)

    def _store_memories(
        self, pending: list[tuple[ArrivedMemory, Mapping[str, str | None]]]
    ) -> None:
        """Store memories in one commit; if one is refused, each in its own."""
        try:
            endings = import_memories(self.engine, pending)
        except CallerError as error:
            if len(pending) == 1:
                self._fail(pending[0][0].line, None, error)
                return
            for one in pending:
                self._store_memories([one])
            return
        for (each, _), (is_stored, wrong) in zip(pending, endings, strict=True):
            if wrong:
                self._fail(each.line, None, InvalidItemError(wrong))
            self.done.memories += is_stored

    def _here(self, each: ArrivedMemory, name: str) -> str | None:
        """Return the name that a session of the file has here; None if it was not imported.

        One that the file does not hold may have been imported before.
        """
        place = (*each.file, name)
        if place not in self.places:
            with suppress(CallerError):
                return self._named(Title(name, *each.file, "", "", 0, 1, 0, 0, 0, 0)).session
        found = self.places.get(place)
        return found[2] if found is not None and found[:2] == each.owner else None

    def _of_family(self, fork: Place, origin: Place) -> Place | None:
        """Return where a session that a stored fork comes from is stored; None if it is not.

        One that the file does not hold may have been imported before, under a name that was changed
        as the fork's. Its beginning proves it: another session may have the name.
        """
        if origin in self.places:
            return self.places[origin]
        stored = self.places[fork]
        if stored is None or not stored[2].endswith(fork[2]):
            return None
        found = (*stored[:2], stored[2].removesuffix(fork[2]) + origin[2])
        return found if begins_alike(self.engine, found, stored) else None

    def _link_memories(self) -> None:
        """Let memories that came before their sessions find these."""
        renamed: dict[Owner, dict[str, str]] = {}
        for origin, place in self.places.items():
            if place is not None:
                renamed.setdefault(place[:2], {})[origin[2]] = place[2]
        for owner, names_here in renamed.items():
            link_memories(self.engine, owner, names_here)

    def _settle(self, origin: Place, place: Place, line: int) -> None:
        """Note where a session of the file is stored, whose title is on a line."""
        self.places[origin] = place
        if self.options.listener is not None:
            self.options.listener.settled(line, place)

    def _tell(self, part: _Part) -> None:
        """Count what a commit stored of a session."""
        done, session = self.done, part.session
        if part.is_last:
            origin = self.origins.pop(place_of(session.title), None)
            if origin is not None:
                self._settle(origin, place_of(session.title), session.line)
        live = sum(map(itemgetter(0), part.entries))
        done.items += live
        session.next_seq += len(part.entries) if session.begun else 0
        done.aside += len(part.entries) - live
        if session.is_conversation:
            done.conversations += part.is_last
            done.calls += _calls(entry.item for entry in part.entries)
            done.open_calls += session.open_calls if part.is_last else 0
            done.orphans += session.orphan_count
        elif part.is_last:
            done.aside -= session.stood_in
            done.sessions += not session.begun
            done.views += len(session.views)

    def _write(self, txn: Txn, parts: list[_Part]) -> None:
        titles = [part.session.title for part in parts]
        owners = dict.fromkeys((title.app, title.user) for title in titles)
        scopes = {owner: names.ensure_scope(txn, *owner) for owner in owners}
        places = [scopes[title.app, title.user] for title in titles]
        taken = [
            part.session
            for part, scope in zip(parts, places, strict=True)
            if not part.session.begun
            and names.session_of(txn, scope, part.session.title.session) is not None
        ]
        if taken:
            raise _Lost(taken, "a session of this name was made meanwhile; import again")
        for part, scope in zip(parts, places, strict=True):
            session, title = part.session, part.session.title
            draft = self._draft(txn, part, scope)
            for group in _runs(part.entries):
                items = [entry.item for entry in group]
                if group[0].live:
                    draft.append(items, orphans=session.orphans)
                else:
                    draft.lay_aside(items, after=group[0].after)
            session.open_calls, session.orphan_count = draft.open_calls, draft.orphans
            if part.is_last:
                for view in session.views:
                    _write_view(draft, view)
                states = session.state.counters
                for checkpoint in session.checkpoints:
                    write_arrived(draft, checkpoint, states=states)
                session.state.write(txn, draft.log.place)
                if title.part and not session.begun:
                    assert session.part is not None  # noqa: S101 - ``_continued`` made it
                    mark = {ARCHIVED: _digest_of(session.part[1], title.created_ms)}
                    write_terms(txn, session_terms(*draft.log.place), Terms(marks=mark))
                behind = draft.head.revision + 1 if session.begun else 0
                draft.head.revision = max(title.revision, behind)
                draft.head.flags &= ~FLAG_UNFINISHED
            # Until the last commit the time shows other imports that this one is alive.
            now_ms = title.updated_ms if part.is_last else self.engine.now_ms()
            draft.finish(now_ms=now_ms, revised=not part.is_last)
            if part.is_last and session.number is not None and not session.begun:
                names.rename_session(txn, session.number[0], session.growing_name, title.session)

    def _need_unmoved(self, txn: Txn, draft: SessionTxn, session: Incoming) -> None:
        """Refuse to go on behind items that somebody else appended, or against a lease."""
        lease = read_lease(txn, *draft.log.place) if draft.head.leased else None
        is_held = lease is not None and lease.is_held(self.engine.now_ms())
        if is_held or draft.head.next_seq != session.next_seq:
            raise _Lost([session], "it is leased, or was written to; import again")

    def _draft(self, txn: Txn, part: _Part, scope: int) -> SessionTxn:
        """Return the session's draft; its first part creates the session."""
        session, title = part.session, part.session.title
        if session.number is not None:
            draft = self.engine.drafts.open(txn, *session.number)
            if draft is None:
                raise _Lost([session], "it was deleted while it was imported; import again")
            if session.begun:
                self._need_unmoved(txn, draft, session)
            return draft
        name = title.session
        head = Head(policy=title.policy, counter=session.counter.id, now_ms=title.created_ms)
        if not part.is_last:
            name = session.growing_name
            head.flags |= FLAG_UNFINISHED
        number = names.new_session(txn, scope, name)
        draft = self.engine.drafts.create(txn, scope, number, head)

        def settle() -> None:
            session.number, session.log = (scope, number), draft.log

        txn.on_commit(settle)
        return draft


def _digest_of(origin: Place, created_ms: int) -> int:
    """Return a number that stands for a session in the file that it comes from."""
    told = "\0".join((*origin, str(created_ms))).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(told, digest_size=6).digest(), "big") + 1


def _runs(entries: Iterable[LoadedItem]) -> Iterator[list[LoadedItem]]:
    """Group consecutive entries that are all live, or all undone."""
    run: list[LoadedItem] = []
    for entry in entries:
        if run and (entry.live != run[0].live or entry.after is not None):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _bounded(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Yield the parts; one with very many entries is split over several commits."""
    small: list[_Part] = []
    for part in parts:
        entries = iter(part.entries)
        if len(part.entries) <= 2 * COMMIT_ITEMS_MAX:
            small.append(part)
            continue
        left = len(part.entries)
        while left > 0:
            chunk = list(islice(entries, COMMIT_ITEMS_MAX))
            left -= len(chunk)
            yield [_Part(part.session, chunk, is_last=part.is_last and not left)]
    if small:
        yield small


def _write_view(draft: SessionTxn, view: View) -> None:
    """Append a view to the session's chain of views."""
    head, session = draft.head, draft.log.session
    view = replace(view, number=head.next_view, parent=head.view_number)
    chain = draft.chain_at(view.cut_seq) if view.cut_seq else 0
    owners = (session,) * len(view.masks)
    stored = StoredView(view, chain, session, head.view_session, owners, inherits=view.parent > 0)
    write_view(draft.txn, draft.log.scope, stored)
    head.next_view += 1
    head.view_session, head.view_number = session, view.number


def _is_taken(txn: ReadTxn, title: Title) -> bool:
    """Return True if a session has the name; one being imported has a temporary name."""
    scope = names.scope_of(txn, title.app, title.user)
    return scope is not None and names.session_of(txn, scope, title.session) is not None


def _figures(of: Title | Head) -> Figures:
    """Return what must be equal of two sessions that may be the same."""
    return of.revision, of.next_seq, of.updated_ms


def _head_of(txn: ReadTxn, title: Title) -> Head | None:
    """Read the head of the stored session that has the title's names."""
    scope = names.scope_of(txn, title.app, title.user)
    session = None if scope is None else names.session_of(txn, scope, title.session)
    if scope is None or session is None:
        return None
    key = head_key(scope, session)
    value = txn.get(key)
    return None if value is None else Head.unpack(key, value)


def _calls(items: Iterable[Prepared]) -> int:
    """Count the calls that items make."""
    return sum(len(classify(item.message)[1]) for item in items)


def _cut_short(session: Incoming) -> InvalidItemError:
    missing = counted(session.lines_left, "line of it is", "lines of it are")
    return InvalidItemError(f"the session ends early: {missing} missing")


def _encoded(line: str) -> bytes:
    """Return a line of text as the bytes it was; what was no UTF-8 is refused when it is read."""
    try:
        return line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return line.encode("utf-8", "surrogatepass")
