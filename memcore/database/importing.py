"""Reading the lines of an export: sessions come back with their seqs, times, events and views.

Items are committed some hundreds at a time. A session that fits into one commit appears at once;
a larger one grows under another name and gets its own in its last commit, so nobody ever sees, and
no crash ever leaves, half a session under its name. Until then a flag in its head says that it is
an import's, and only what bears it is ever removed: what a killed import left goes with the next
import into its scope that comes an hour or more after its last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from memcore import names
from memcore.blobs import StagedBlobLost
from memcore.database.arrived import write_arrived
from memcore.database.exchange import Title, is_title, parse_line, refuse
from memcore.database.incoming import (
    Entry,
    Incoming,
    StandIns,
    remove_leftovers,
    remove_unfinished,
)
from memcore.database.sharing import Owner, import_shared, is_shared
from memcore.errors import (
    CallerError,
    InvalidItemError,
    InvalidOptionError,
    ReadOnlyError,
    StorageError,
)
from memcore.formats import policy_name
from memcore.log import Draft, Head
from memcore.log.head import FLAG_UNFINISHED, head_key
from memcore.model import View
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter
from memcore.views import StoredView, write_view

__all__ = ["Imported", "import_lines"]

COMMIT_ITEMS_MAX: Final = 1000
COMMIT_BYTES_MAX: Final = 4 * 1024**2
_STAGE_ATTEMPTS: Final = 8
Rename: TypeAlias = Callable[[Title], Title]


@dataclass(slots=True)
class Imported:
    """What an import did."""

    sessions: int = 0
    items: int = 0
    views: int = 0
    skipped: int = 0
    """Sessions that were there already, the same."""
    shared: int = 0
    """States of users and applications."""
    failures: list[str] = field(default_factory=list)
    """Sessions that were not imported, each with the line and the reason."""


def import_lines(
    backing: Backing,
    lines: Iterable[bytes],
    *,
    rename: Rename | None = None,
    counter: TokenCounter | None = None,
) -> Imported:
    """Store the sessions of an export; those that cannot be stored are listed, not raised.

    ``rename`` may give a session another name, user or application; ``counter`` counts tokens in
    place of the one that the file names.

    Raises:
        InvalidOptionError: the lines are no bytes.
        ReadOnlyError, StorageError
    """
    if backing.store.read_only:
        msg = "the database is open read-only; open it for writing"
        raise ReadOnlyError(msg)
    if counter is not None:
        backing.counters.setdefault(counter.id, counter)
    return _Import(backing, rename, counter).run(lines)


class _Lost(Exception):  # noqa: N818 - a signal, listed as a failure
    """Somebody else took the sessions' names, or removed what was stored of one."""

    def __init__(self, sessions: list[Incoming], text: str) -> None:
        super().__init__(text)
        self.sessions = sessions


@dataclass(slots=True)
class _Part:
    """What one commit stores of a session."""

    session: Incoming
    entries: list[Entry]
    is_last: bool


class _Import:
    """One run over the lines."""

    def __init__(
        self, backing: Backing, rename: Rename | None, counter: TokenCounter | None
    ) -> None:
        self.backing = backing
        self.rename = rename
        self.counter = counter
        self.done = Imported()
        self.scopes: set[tuple[str, str]] = set()
        """Apps and users that were met."""
        self.stand_ins = StandIns()
        self.whole: list[Incoming] = []
        """Sessions that were read and wait for the commit."""
        self.items = 0
        self.bytes = 0
        """What waits for the commit."""

    def run(self, lines: Iterable[bytes]) -> Imported:
        """Read all lines; commit whenever enough was read."""
        session: Incoming | None = None
        began = 0
        for number, line in enumerate(lines, 1):
            if not isinstance(line, bytes):
                msg = f"lines: expected bytes (a file opened with 'rb'), got {type(line).__name__}"
                raise InvalidOptionError(msg)
            if not line.strip():
                continue
            self.stand_ins.pay()
            try:
                found = parse_line(line)
                if is_title(found):
                    unfinished, session = session, None
                    if unfinished is not None:
                        self._give_up(unfinished, began, _cut_short(unfinished))
                    began = number
                    session = self._begin(found, number)
                elif session is not None:
                    session.take(found)
                elif not began:
                    began = number  # once is enough
                    refuse("expected the line that begins a session")
            except CallerError as error:
                if session is None:
                    self._fail(number, None, error)
                else:
                    self._give_up(session, number, error)
                    session = None
                continue
            if session is not None:
                session = self._count(session, len(line))
        if session is not None:
            self._give_up(session, began, _cut_short(session))
        self._commit(None)
        return self.done

    # --- lines ------------------------------------------------------------------------------------

    def _count(self, session: Incoming, size: int) -> Incoming | None:
        """After a line was taken; None if it was the session's last."""
        self.items += 1
        self.bytes += size
        current: Incoming | None = session
        if not session.lines_left:
            session.finish()
            self.whole.append(session)
            current = None
        if self.items >= COMMIT_ITEMS_MAX or self.bytes >= COMMIT_BYTES_MAX:
            self._commit(current)
        return None if session.is_given_up else current

    def _begin(self, found: Mapping[str, Any], line: int) -> Incoming | None:
        """The session that a title begins; None if it is there already, or a line of its own."""
        if is_shared(found):
            import_shared(self.backing, found, self._renamed)
            self.done.shared += 1
            return None
        title = Title.of(found)
        if self.rename is not None:
            title = self.rename(title)
        for what in ("app", "user", "session"):
            names.check_name(getattr(title, what), what)
        policy_name(title.policy)
        counter = self.counter or self.backing.counter_named(title.counter)
        if (title.app, title.user) not in self.scopes:
            self.scopes.add((title.app, title.user))
            remove_leftovers(self.backing, title.app, title.user)
        if self.backing.store.read(lambda txn: self._is_there(txn, title)):
            self.done.skipped += 1
            return None
        if any(_place(waiting.title) == _place(title) for waiting in self.whole):
            refuse(f"session {title.session!r} comes twice")
        return Incoming(title, counter, self.backing, line=line, stand_ins=self.stand_ins)

    def _renamed(self, owner: Owner) -> Owner:
        """Who owns a state that was ``owner``'s."""
        if self.rename is None:
            return owner
        app, user = owner
        title = self.rename(Title("", app, user, "", "", 0, 1, 0, 0, 0, 0))
        return title.app, title.user if user else ""

    def _is_there(self, txn: ReadTxn, title: Title) -> bool:
        """Whether the session is stored already, as far as its head tells.

        Raises:
            InvalidOptionError: there is another one of this name.
        """
        scope = names.scope_of(txn, title.app, title.user)
        session = None if scope is None else names.session_of(txn, scope, title.session)
        if scope is None or session is None:
            return False
        key = head_key(scope, session)
        value = txn.get(key)
        head = None if value is None else Head.unpack(key, value)
        wanted = (title.revision, title.next_seq, title.updated_ms)
        if head is None or (head.revision, head.next_seq, head.updated_ms) != wanted:
            msg = (
                f"session {title.session!r} of user {title.user!r} in app {title.app!r} exists and "
                "is another one: delete it first, or import under another name"
            )
            raise InvalidOptionError(msg)
        return True

    def _fail(self, number: int, session: Incoming | None, error: Exception) -> None:
        where = f" (session {session.title.session!r})" if session is not None else ""
        self.done.failures.append(f"line {number}{where}: {error}")

    def _give_up(self, session: Incoming, number: int, error: Exception) -> None:
        """Forget a session that cannot be read to its end, with what is stored of it."""
        self._fail(number, session, error)
        session.is_given_up = True
        if session.number is not None:
            remove_unfinished(self.backing, *session.number, session.growing_name)

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, session: Incoming | None) -> None:
        """Store what waits: whole sessions, and a part of the one that is being read."""
        parts = [_Part(whole, whole.entries, is_last=True) for whole in self.whole]
        if session is not None and session.entries:
            parts.append(_Part(session, session.entries, is_last=False))
        self.whole, self.items, self.bytes = [], 0, 0
        for group in _bounded(parts):
            self._store(group)
        if session is not None:
            session.entries = []

    def _store(self, parts: list[_Part]) -> None:
        """One commit; very large items go ahead, again if they were collected meanwhile."""
        attempts = _STAGE_ATTEMPTS
        while attempts:
            parts = [part for part in parts if not part.session.is_given_up]
            for part in parts:
                part.session.appending.stage(entry.item for entry in part.entries)
            try:
                self.backing.store.transact(lambda txn, parts=parts: self._write(txn, parts))  # type: ignore[misc]
            except StagedBlobLost:
                attempts -= 1
                continue
            except _Lost as lost:
                for session in lost.sessions:
                    self._give_up(session, session.line, lost)
                continue
            for part in parts:
                self.done.items += sum(map(itemgetter(0), part.entries))
                self.done.sessions += part.is_last
                self.done.views += len(part.session.views) if part.is_last else 0
            return
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    def _write(self, txn: Txn, parts: list[_Part]) -> None:
        taken = [part.session for part in parts if _is_taken(txn, part.session.title)]
        if taken:
            raise _Lost(taken, "a session of this name was made meanwhile; import again")
        for part in parts:
            session, title = part.session, part.session.title
            draft = self._draft(txn, part)
            for group in _runs(part.entries):
                items = [entry.item for entry in group]
                if group[0].live:
                    draft.append(items, orphans="keep")
                else:
                    draft.lay_aside(items, after=group[0].after)
            if part.is_last:
                for view in session.views:
                    _write_view(draft, view)
                states = session.state.counters
                for checkpoint in session.checkpoints:
                    write_arrived(draft, checkpoint, states=states)
                session.state.write(txn, draft.log.place)
                draft.head.revision = title.revision
                draft.head.flags &= ~FLAG_UNFINISHED
            # Until the last commit the time tells other imports that this one is alive.
            now_ms = title.updated_ms if part.is_last else self.backing.now_ms()
            draft.finish(now_ms=now_ms, revised=not part.is_last)
            if part.is_last and session.number is not None:
                scope = session.number[0]
                names.rename_session(txn, scope, session.growing_name, title.session)

    def _draft(self, txn: Txn, part: _Part) -> Draft:
        """The session's draft; its first part makes the session."""
        session, title = part.session, part.session.title
        if session.number is not None:
            draft = self.backing.drafts.open(txn, *session.number)
            if draft is None:
                raise _Lost([session], "it was deleted while it was imported; import again")
            return draft
        scope = names.ensure_scope(txn, title.app, title.user)
        name = title.session
        head = Head(policy=title.policy, counter=session.counter.id, now_ms=title.created_ms)
        if not part.is_last:
            name = session.growing_name
            head.flags |= FLAG_UNFINISHED
        number = names.new_session(txn, scope, name)
        draft = self.backing.drafts.create(txn, scope, number, head)

        def settle() -> None:
            session.number, session.log = (scope, number), draft.log

        txn.on_commit(settle)
        return draft


def _runs(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries that follow each other and are all live, or all undone."""
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.live != run[0].live or entry.after is not None):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _bounded(parts: list[_Part]) -> Iterator[list[_Part]]:
    """The parts, those of very many entries cut into several commits."""
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


def _write_view(draft: Draft, view: View) -> None:
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
    """Whether there is a session of the name; while one is imported, it has another."""
    scope = names.scope_of(txn, title.app, title.user)
    return scope is not None and names.session_of(txn, scope, title.session) is not None


def _place(title: Title) -> tuple[str, str, str]:
    return title.app, title.user, title.session


def _cut_short(session: Incoming) -> InvalidItemError:
    left = session.lines_left
    return InvalidItemError(f"the session ends early: {left} of its lines are missing")
