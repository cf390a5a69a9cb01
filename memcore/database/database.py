"""Database: the open file, the administrator's handle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from memcore import audit, database, exchange, maintenance, privacy, retention, session, store
from memcore.access import Access
from memcore.database.scope import Scope, erase_user
from memcore.errors import (
    AuditError,
    InvalidOptionError,
    MemcoreError,
    ReadOnlyError,
    SupersededError,
)
from memcore.limits import SWEEP_LIMIT
from memcore.model import ItemKind, SearchHit, SessionEntry, Summarize
from memcore.options import (
    checked_bool,
    checked_callable,
    checked_int,
    checked_optional_seconds,
    checked_optional_text,
    checked_path,
    refuse_copies,
    shown,
)
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import is_erased
from memcore.session import Engine, Session
from memcore.store.interface import ReadTxn, Txn
from memcore.store.lmdb import verify as structure_of
from memcore.store.store import check_mode, is_own_file
from memcore.tokens import TokenCounter, get_counter

if TYPE_CHECKING:
    from memcore.audit.verify import AuditedEntry, AuditReport
    from memcore.compaction import CompactionPolicy
    from memcore.database.stats import Branch, Difference
    from memcore.database.warm import WarmCopy, WarmStatus
    from memcore.exchange.lines import Title
    from memcore.exchange.load import Imported
    from memcore.maintenance.backup import CompactReport
    from memcore.maintenance.backup import Progress as CopyProgress
    from memcore.privacy import RedactingFilter
    from memcore.privacy.keyring import Key
    from memcore.retention import (
        ArchiveTarget,
        AuditSweep,
        ErasureReceipt,
        Hold,
        Retention,
        Sweeper,
        SweepReport,
    )
    from memcore.retention.erasure import Judge
    from memcore.session.checkpoints import Position
    from memcore.session.content_filter import Guards, Redact
    from memcore.session.content_filter import Redact as Demanded
    from memcore.store.encryption import RowCipher

__all__ = [
    "Database",
    "KeyStatus",
    "Rotation",
]


# --- Keys of an encrypted database: status and rotation -------------------------------------------

Progress: TypeAlias = Callable[[int], None]


@record(frozen=True, slots=True)
class KeyStatus:
    """Contents of a database's key file."""

    key_file: str | None
    """None if the database, and so its keys, are in memory."""
    users: int
    """Scopes (of users and applications) that have a data key."""
    unfinished: tuple[tuple[str, str], ...]
    """``(app, user)`` of scopes with several keys: a rotation was interrupted or is in progress."""


@record(frozen=True, slots=True)
class Rotation:
    """Result of a rotation of data keys."""

    values: int
    """Values encrypted with the new key."""
    finished: bool
    """False: another process has the file open, or a value does not decrypt (``check`` names it);
    the old keys are kept until the rotation is repeated."""


def _status(engine: Engine) -> KeyStatus:
    """Read the status of the key file."""
    ring = _vault(engine).ring
    ring.refresh()

    found = {number: (app, user) for number, app, user in engine.store.read(_scopes)}
    several = [place for number, place in found.items() if len(ring.numbers(number)) > 1]
    owners = sum(bool(ring.numbers(number)) for number in found)
    return KeyStatus(ring.path, owners, tuple(several))


def _scopes(txn: ReadTxn) -> list[tuple[int, str, str]]:
    return list(names.all_scopes(txn))


def _rewrap(engine: Engine, key: Key) -> None:
    """Protect the key file with another key-encryption key; contents are unchanged."""
    provider = privacy.key_provider(key)
    vault = _vault(engine)
    _need_writable(engine)
    _tell(engine, 0, "key rotation begun", {})
    # Runs outside any commit: if one failed, its error would claim that nothing was changed.
    engine.store.alone(lambda: vault.ring.rewrap(provider))
    try:
        _tell(engine, 0, "key rotated", {})
    except MemcoreError as error:
        msg = f"the key file is under the new key now, but the audit does not say so: {error}"
        raise AuditError(msg) from error


def _rotate(
    engine: Engine, *, user: str | None, app: str | None, progress: Progress | None
) -> Rotation:
    """Re-encrypt contents with new data keys, one per user."""
    vault = _vault(engine)
    _need_writable(engine)
    values, finished = 0, True
    for number, its_app, its_user in engine.store.read(_scopes):
        if user in (None, its_user) and app in (None, its_app):
            try:
                count, whole = store.reseal(engine.store, number, progress=progress)
            except MemcoreError:
                if not vault.is_shredded(number):
                    raise
                count, whole = 0, True
            if vault.is_shredded(number):
                continue  # erased in the meantime: there is nothing left to encrypt
            _tell(engine, number, "data keys rotated", {"values": count, "finished": whole})
            values += count
            finished = finished and whole
    return Rotation(values, finished)


def _tell(engine: Engine, scope: int, what: str, details: Mapping[str, Any]) -> None:
    """Append an event of a live scope (0: of the database) to the audit, if there is one."""

    def closure(txn: Txn) -> None:
        if not is_erased(txn, scope):
            audit.record_event(txn, scope, what, details)

    if engine.store.environment().audit is not None:
        engine.store.transact(closure)


def _vault(engine: Engine) -> RowCipher:
    vault = engine.store.vault
    if vault is None:
        msg = "the database is not encrypted: it has no keys"
        raise InvalidOptionError(msg)
    return vault


def _need_writable(engine: Engine) -> None:
    if engine.store.read_only:
        raise ReadOnlyError("the database is open read-only; open it for writing")


# --- Retention on the administrator's handle ------------------------------------------------------

_STEP_LIMIT: Final = 1000
"""Limit of each sweep by the background thread."""
_INTERVAL_SECONDS_MAX: Final = 10**9
"""Longest wait between sweeps: a lock takes no longer timeout than some 290 years."""
_NOW_MAX: Final = 2**40


def _cut(engine: Engine, scope: int, session: int, before_ms: int, most: int) -> int:
    return audit.cut_chain(engine.store, (scope, session), before_ms, most=most)


def _milliseconds(now: object) -> int:
    is_number = isinstance(now, int | float) and not isinstance(now, bool)
    if not is_number or not 0 <= now < _NOW_MAX:  # type: ignore[operator]
        msg = f"now: expected seconds since 1970, got {now!r}"
        raise InvalidOptionError(msg)
    return int(now * 1000)  # type: ignore[operator]


# --- Database: the open file, the administrator's handle ------------------------------------------

_NOTEBOOK_SESSIONS: Final = 50


class Database:
    """An open memcore file. Use it as a context manager or close it explicitly."""

    __reduce__ = refuse_copies

    def __init__(self, engine: Engine, warm: WarmCopy | None = None) -> None:
        if isinstance(engine, str | os.PathLike):
            raise TypeError("memcore.open(path) opens a database")
        self._engine = engine
        self._sweepers: set[Sweeper] = set()
        self._warm = warm
        self.audit_sweep: AuditSweep | None = None if engine.audit is None else _cut
        """Removes audit entries that have expired under a rule; None keeps them all."""

    def __enter__(self) -> Self:
        self._engine.store.environment()  # a closed one is told of here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {"engine"})  # for memcore's own adapters only

    def __repr__(self) -> str:
        end = ", read_only=True)" if self.read_only else ")"
        return f"Database({self.path!r}, durability={self.durability!r}{end}"

    def _repr_html_(self) -> str | None:
        from memcore.preview import html_table  # noqa: PLC0415 - for notebooks alone

        try:
            found = list(islice(self.sessions(), _NOTEBOOK_SESSIONS + 1))
        except MemcoreError:
            return None  # it is closed, or who looks may not list them: the repr is shown
        more = ", the first of them" if len(found) > _NOTEBOOK_SESSIONS else ""
        shown = found[:_NOTEBOOK_SESSIONS]
        rows = ((e.session_id, e.user, e.app, e.items, e.tokens) for e in shown)
        title = f"sessions of {self.path}{more}"
        return html_table(title, ("session", "user", "app", "items", "tokens"), rows)

    @property
    def engine(self) -> Engine:
        """Engine shared by all handles of this database; for memcore's own adapters."""
        return self._engine

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._engine.store.path

    @property
    def durability(self) -> str:
        """Durability mode of the file: ``"full"``, ``"relaxed"`` or ``"none"``.

        See ``memcore.open``.
        """
        return self._engine.store.durability

    @property
    def read_only(self) -> bool:
        """True if this handle refuses writes."""
        return self._engine.store.read_only

    @property
    def needs_recovery(self) -> bool:
        """True if a read-only handle is one commit behind until a writer opens. Advisory."""
        return self._engine.store.needs_recovery

    def close(self) -> None:
        """Close the handle; the last one in a process closes the file. Idempotent.

        Raises:
            StorageError: pending access counts cannot be written; the handle is closed anyway.
        """
        self._stop_sweepers()
        try:
            try:
                with suppress(SupersededError):  # nobody writes to this file any more
                    self._engine.write_uses()
            finally:
                if self._warm is not None:
                    self._warm.close()
        finally:
            self._engine.unwritten.clear()
            self._engine.store.close()

    # --- scopes and sessions ----------------------------------------------------------------------

    def scope(self, *, user: str = "default", app: str = "default") -> Scope:
        """Open the handle that serves one user of one application and can reach nothing else.

        Raises:
            InvalidOptionError: a name is invalid.
            AccessDeniedError: the authorizer refused access.
        """
        return self._scope(app, user, self._engine.access)

    def session(
        self,
        session_id: str,
        *,
        user: str = "default",
        app: str = "default",
        policy: str | None = None,
        orphans: str = "raise",
        shape: str = "raise",
        counter: str | TokenCounter | None = None,
        recount: bool | None = None,
        compaction: CompactionPolicy | str | Mapping[str, Any] | None = None,
        state: Any = None,
        create: bool = True,
        access_counts: bool | None = None,
        auto_compact: Summarize | None = None,
        auto_recover: bool = False,
    ) -> Session:
        """Open a session: ``db.scope(user=, app=).session(session_id, ...)``."""
        return self.scope(user=user, app=app).session(
            session_id,
            policy=policy,
            orphans=orphans,
            shape=shape,
            counter=counter,
            recount=recount,
            compaction=compaction,
            state=state,
            create=create,
            access_counts=access_counts,
            auto_compact=auto_compact,
            auto_recover=auto_recover,
        )

    def scopes(self) -> list[tuple[str, str]]:
        """List every ``(app, user)`` that owns anything."""
        self._need("scopes")
        return self._pairs()

    def sessions(
        self, *, user: str | None = None, app: str | None = None
    ) -> Iterator[SessionEntry]:
        """Iterate over all sessions, or those of one user or application.

        Each page is read in its own transaction.
        """
        self._need("sessions", app=app, user=user)
        return self._sessions(user, app)

    def _sessions(self, user: str | None, app: str | None) -> Iterator[SessionEntry]:
        for place in self._pairs_of(user, app):
            yield from Scope(self._engine, *place).sessions()

    def delete_session(
        self, session_id: str, *, user: str = "default", app: str = "default"
    ) -> bool:
        """Delete a session and its rows; return True if it existed."""
        return self.scope(user=user, app=app).delete_session(session_id)

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        user: str | None = None,
        app: str | None = None,
        sessions: Iterable[str] | None = None,
        kinds: Iterable[ItemKind | str] | None = None,
        authors: Iterable[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        explain: bool = False,
        mode: str = "auto",
        memories: bool = False,
    ) -> list[SearchHit]:
        """Search the sessions of all users, or of one user or application; see ``Scope.search``.

        Each scope is ranked by its own statistics, so that no score depends on what other users
        wrote; scores of different scopes are comparable only roughly.

        Raises:
            InvalidOptionError, EmbedderError, AccessDeniedError, CorruptValueError,
            StorageError: as for ``Session.search``.
        """
        self._need("search", app=app, user=user)
        asked = session.search_request(
            query,
            k=k,
            sessions=sessions,
            kinds=kinds,
            authors=authors,
            since=since,
            until=until,
            explain=explain,
            mode=mode,
            memories=memories,
        )
        found: list[SearchHit] = []
        for its_app, its_user in self._pairs_of(user, app):
            found += session.search_scope(self._engine, its_app, its_user, asked)
        found.sort(key=lambda hit: (-hit.score, hit.app, hit.user, hit.session_id, hit.seq))
        return found[: asked.k]

    def index_sessions(self, *, user: str | None = None, app: str | None = None) -> int:
        """Bring the search indexes up to date; return the number of items added.

        Raises:
            ReadOnlyError, StorageError
        """
        self._need("index_sessions", app=app, user=user)
        return sum(
            session.index_sessions(self._engine, *place) for place in self._pairs_of(user, app)
        )

    def reindex(self, *, user: str | None = None, app: str | None = None) -> int:
        """Drop the search indexes and build them anew; return the number of items in them.

        Raises:
            ReadOnlyError, StorageError
        """
        self._need("reindex", app=app, user=user)
        return sum(session.reindex(self._engine, *place) for place in self._pairs_of(user, app))

    def _pairs_of(self, user: str | None, app: str | None) -> list[tuple[str, str]]:
        if user is not None and app is not None:  # of many users one is found by name
            is_there = self._engine.store.read(lambda txn: names.scope_of(txn, app, user))
            return [] if is_there is None else [(app, user)]
        return [
            (its_app, its_user)
            for its_app, its_user in self._pairs()
            if user in (None, its_user) and app in (None, its_app)
        ]

    # --- maintenance ------------------------------------------------------------------------------

    def check(self, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Check everything: structure, checksums, index, chains, references. Empty means sound.

        Args:
            progress: called with (sessions done, total sessions).
        """
        self._need("check")
        return maintenance.check_database(self._engine, checked_callable("progress", progress))

    @property
    def demands(self) -> dict[str, Any]:
        """Policies required of every writer of this file, as JSON: ``redact`` and ``guards``.

        ``names`` only reports if there are any: they are encrypted with the file's secret.

        Raises:
            CorruptValueError: the row is damaged.
        """
        self._need("demands")
        return self._engine.store.read(session.read_demand).shown()

    def log_filter(self, redact: Redact = None) -> RedactingFilter:
        """Return a ``logging.Filter`` that redacts as this file does; see RedactingFilter.

        Args:
            redact: the policy; None: the handle's own, or else the default.
        """
        self._need("log_filter")
        write_filter = self._engine.write_filter
        own = None if write_filter is None else write_filter.redaction
        policy = own.policy if redact is None and isinstance(own, privacy.Redaction) else redact
        secret = self._engine.store.secret.value()
        return privacy.RedactingFilter("default" if policy is None else policy, secret=secret)

    def demand(self, *, redact: Demanded = None, guard: Guards | bool = None) -> None:
        """Change the policies that the file requires of its writers; the audit records it.

        It applies from the next open on: open handles keep the policies they were opened with.

        Args:
            redact: the new policy; None keeps the current one; False removes it.
            guard: the new guards; None keeps the current ones; False removes them.

        Raises:
            InvalidOptionError: ``redact`` is no policy, or ``guard`` no guard.
            ReadOnlyError, StorageError: nothing was changed.
        """
        self._need("demand")
        session.demand(self._engine.store, redact, guard)

    def branches(self, *, user: str | None = None, app: str | None = None) -> list[Branch]:
        """List the tree of sessions and their forks, with their checkpoints.

        Parents come before their forks. Deleted sessions that are kept for their forks are
        included, without a name. Uses one read transaction per scope.
        """
        self._need("branches", app=app, user=user)
        found: list[Branch] = []
        for its_app, its_user in self._pairs():
            if user not in (None, its_user) or app not in (None, its_app):
                continue

            def collect(txn: ReadTxn, app: str = its_app, user: str = its_user) -> list[Branch]:
                scope = names.scope_of(txn, app, user)
                return [] if scope is None else list(database.branches_of(txn, scope, app, user))

            found += self._engine.store.read(collect)
        return found

    def compare(
        self,
        a: Session,
        b: Session,
        *,
        at: Position | None = None,
        other_at: Position | None = None,
    ) -> Difference:
        """Compare two histories: their common prefix, and the rest of each.

        Args:
            a: a session of this database.
            b: another one, or the same.
            at: the position up to which to read ``a``: a live seq, a checkpoint or its name;
                None reads all of it.
            other_at: the same for ``b``.

        Raises:
            NotFoundError: the session or position does not exist.
            InvalidOptionError: ``a`` or ``b`` is no session of this database.
            CorruptValueError: a row is damaged.
        """
        return database.compare(self._engine, a, b, at=at, other_at=other_at)

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of the file and of this process's handle on it."""
        self._need("stats")
        return database.count_everything(self._engine, self._pairs())

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        compact: bool = True,
        verify: bool = True,
        progress: CopyProgress | None = None,
    ) -> None:
        """Copy the database to a new file while others read and write.

        The copy is made under a temporary name, flushed and verified, then renamed.

        Args:
            path: the file to create.
            compact: leave out free pages.
            verify: run the full ``check`` on the copy; False checks only its structure.
            progress: called with (sessions checked, total sessions) while the copy is checked.

        Raises:
            StoreAccessError: the target exists or cannot be written.
            StoreFullError: no space left for the copy.
            CorruptStoreError: the copy, and so the database, has findings; nothing was created.
        """
        target = checked_path("path", path)
        self._need("backup", name=target)
        checked_bool("compact", compact)
        judge = self._judge(progress) if checked_bool("verify", verify) else None
        self._engine.store.backup(target, compact=compact, judge=judge)

    def copy_compact(
        self,
        *,
        durability: str | None = None,
        allow_unsafe: bool = False,
        verify: bool = True,
        progress: CopyProgress | None = None,
    ) -> CompactReport:
        """Return free pages to the file system: swap the file for a compact, verified copy.

        It needs exclusive access: no other process may have the file open. This process's handles
        stay usable; writers wait until it is done. Interrupted at any point, it leaves either the
        old file or the new one, complete. The copy needs free space next to the file.

        Args:
            durability: the mode from now on; this is how a database changes its mode.
            allow_unsafe: consent to ``durability="none"``.
            verify: run the full ``check`` on the copy; False checks only its structure.
            progress: called with (sessions checked, total sessions) while the copy is checked.

        Raises:
            StoreLockedError: another process has the file open; nothing was changed.
            StoreFullError: no space left for the copy; nothing was changed.
            CorruptStoreError: the copy has findings; nothing was changed.
            InvalidOptionError, ReadOnlyError, StoreAccessError: nothing was changed.
            StorageError: the swap may not survive a power failure; reopen the database.
        """
        self._need("copy_compact")
        check_mode(durability, allow_unsafe=checked_bool("allow_unsafe", allow_unsafe))
        judge = self._judge(progress) if checked_bool("verify", verify) else None
        store = self._engine.store
        with retention.marking_gone(store):
            before, after = store.copy_compact(durability=durability, judge=judge)
        return maintenance.CompactReport(before, after, self.durability)

    def flush(self) -> None:
        """Flush everything committed so far to the device."""
        self._engine.store.flush()

    # --- warm copy --------------------------------------------------------------------------------

    def ship(self, *, timeout_seconds: float | None = 30.0) -> None:
        """Wait until everything committed before this call is in the warm copy.

        Args:
            timeout_seconds: the longest wait; None: no limit.

        Raises:
            InvalidOptionError: the database was opened without ``warm``.
            SupersededError: the copy was promoted.
            UnshippedError: it did not get there in time; the file has it, and it is shipped later.
        """
        if self._warm is None:
            msg = "ship: the database has no warm copy; open it with warm="
            raise InvalidOptionError(msg)
        self._warm.ship(checked_optional_seconds("timeout_seconds", timeout_seconds))

    def warm_status(self) -> WarmStatus | None:
        """Return the state of the warm copy; None without one."""
        return None if self._warm is None else self._warm.status()

    # --- export and import ------------------------------------------------------------------------

    def export(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        app: str | None = None,
        format: str = "jsonl",  # noqa: A002 - the command line's name
        undone: bool = False,
        left_out: Callable[[str], None] | None = None,
        redact: Redact = None,
    ) -> Iterator[bytes]:
        """Export all sessions, or those of one name, user or application, in chunks of bytes.

        Unless a name is given, the state shared by a user's sessions follows; without a user, so
        does the state of the applications.

        Args:
            session_id: only sessions of this name; without one, nothing is exported.
            user: only this user's.
            app: only this application's.
            format: ``"jsonl"`` holds everything; ``"openai-chat"``, ``"openai-responses"``,
                ``"anthropic"``, ``"gemini"`` and ``"langchain"`` write one line
                ``{"id", "metadata", "messages"}`` per session, legal in that format; ``"parquet"``
                is a table of items for DuckDB, Polars or pandas, which cannot be imported.
            undone: include items that were undone (jsonl and parquet only).
            left_out: called with a line of text for each session with content that messages cannot
                hold (events, meta, compactions) or that was changed for the format; without it,
                such a session is an error. A table of items tells of nothing.
            redact: replace what this policy matches with placeholders.

        Raises:
            InvalidOptionError, InvalidItemError, NotFoundError, CorruptValueError
            ImportError: ``"parquet"`` needs pyarrow.
        """
        exchange.check_form(format, undone=undone)
        is_table = format == "parquet"
        form = "jsonl" if is_table else format
        beside = session_id is None and not is_table
        checked_optional_text("session_id", session_id)
        checked_callable("left_out", left_out)
        self._need("export", app=app, user=user, name=session_id)
        entries = self._sessions(user, app)
        places = ((found.app, found.user, found.session_id) for found in entries)
        chosen = (place for place in places if session_id in (None, place[2]))
        engine = self._engine
        options: dict[str, Any] = {"form": form, "undone": undone, "left_out": left_out}
        if redact not in (None, False):
            found = self._redacted(chosen, (user, app), redact, beside=beside, **options)
        else:
            found = exchange.export_sessions(engine, chosen, **options)
            if beside:
                owned: dict[str, Any] = {
                    "user": user,
                    "app": app,
                    "form": form,
                    "left_out": left_out,
                }
                shared = exchange.export_shared(engine, **owned)
                found = chain(found, shared, exchange.export_memory(engine, **owned))
        return exchange.parquet_of(found) if is_table else found

    def _redacted(
        self,
        chosen: Iterable[tuple[str, str, str]],
        owner: tuple[str | None, str | None],
        redact: Redact,
        *,
        beside: bool,
        **options: Any,
    ) -> Iterator[bytes]:
        """Yield the lines of an export, redacted as their session would have been when stored."""
        engine = self._engine
        for place in chosen:
            found = exchange.export_sessions(engine, [place], **options)
            yield from exchange.redacted_lines(found, session.redacts_at(engine, redact, place))
        if beside:
            form, left_out = options["form"], options["left_out"]
            asked = {"user": owner[0], "app": owner[1], "form": form, "left_out": left_out}
            exports = exchange.export_shared, exchange.export_memory
            for line in chain.from_iterable(export(engine, **asked) for export in exports):
                found = exchange.parse_line(line)
                said = found.get("shared") or found["memory"]
                owned = said["app"], said["user"] or "", None
                yield from exchange.redacted_lines(
                    [line], session.redacts_at(engine, redact, owned)
                )

    def import_(
        self,
        lines: Iterable[bytes | str],
        *,
        rename: Callable[[Title], Title] | None = None,
        counter: str | TokenCounter | None = None,
        format: str = "auto",  # noqa: A002 - the command line's name
        policy: str | None = None,
        orphans: str = "keep",
        on_conflict: str = "error",
        unnamed: str = "line",
    ) -> Imported:
        """Import conversations and exported sessions, with all their data.

        A conversation is a line ``{"id", "messages"}``, or a list of messages; with ``metadata``
        as written by an export, it is restored under its user and application. States of users and
        applications gain the fields they lack; existing fields are kept.

        A session that already exists and is identical counts as ``skipped``, so an interrupted
        import can be repeated. One that cannot be stored is listed in ``failures``; the others are
        stored. Small sessions share a commit.

        Args:
            lines: an open file, best with ``"rb"``, or any iterable of lines.
            rename: may give a session another name, user or application.
            counter: counts tokens instead of the counter named by the export.
            format: ``"jsonl"`` accepts only exported sessions, the name of another ``export``
                format only conversations, ``"auto"`` both.
            policy: the pair policy of conversations; None: the line's own, or the database's.
            orphans: for conversations, results without their call: ``"keep"`` or ``"raise"``.
            on_conflict: if a different session has the name: ``"error"`` (listed in ``failures``),
                ``"skip"`` (listed in ``left_out``), ``"rename"`` (``NAME (2)``), or ``"append"``:
                if the session is a prefix of the conversation, append the remaining messages.
            unnamed: prefix of the name of conversations without an id, before their line number.

        Raises:
            InvalidOptionError, ReadOnlyError, StorageError
        """
        self._need("import")
        by = None if counter is None else get_counter(counter)
        options = exchange.ImportOptions(
            rename=rename, counter=by, format=format, policy=policy, orphans=orphans,
            on_conflict=on_conflict, unnamed=unnamed,
        )  # fmt: skip
        return exchange.import_lines(self._engine, lines, options)

    # --- authorization ----------------------------------------------------------------------------

    def _need(
        self, action: str, *, app: str | None = None, user: str | None = None, name: Any = None
    ) -> None:
        """Ask the authorizer, if there is one, to allow an administrator's action.

        Raises:
            AccessDeniedError: the authorizer refused.
            InvalidOptionError: the user or the application is no str: as a filter, it would
                silently find nothing.
        """
        checked_optional_text("user", user)
        checked_optional_text("app", app)
        if self._engine.access is not None:
            self._engine.access.need(action, app=app, user=user, name=name)

    # --- audit ------------------------------------------------------------------------------------

    def verify_audit(
        self,
        *,
        key: bytes | None = None,
        anchor: str | os.PathLike[str] | Iterable[str | bytes] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AuditReport:
        """Verify every entry of the audit, and every row against its entry; report what fails.

        It works on the stored bytes, so it needs no data key. Uses one read transaction per chain.

        Args:
            key: the audit key; None: the one that the database was opened with.
            anchor: the anchor file or its lines; None: the file the database was opened with, if
                any.
            progress: called with (chains done, total chains).

        Raises:
            InvalidOptionError: there is no key.
            AuditError: the file is not audited, or the anchor cannot be read.
            NotFoundError: the anchor does not exist.
        """
        self._need("verify_audit")
        return database.verify_audit(self._engine, key=key, anchor=anchor, progress=progress)

    def audit_entries(
        self, session_id: str | None = None, *, user: str | None = None, app: str | None = None
    ) -> Iterator[AuditedEntry]:
        """List the entries of a session's chain; without a session, a user's or the database's.

        A user or application that is not given is ``"default"``, if the other or a session is.

        Raises:
            NotFoundError: the session or user does not exist.
        """
        self._need("audit_entries", app=app, user=user, name=session_id)
        return database.list_audit(self._engine, session_id, user=user, app=app)

    def anchor_audit(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        key: bytes | None = None,
        reset: bool = False,
    ) -> int:
        """Append the heads of all chains, changed or not, to the anchor; return their number.

        Args:
            anchor: the file to append to; None: the one that the database was opened with.
            key: the audit key; None: the one that the database was opened with.
            reset: invalidate earlier anchored heads, after a deliberate restore from backup.

        Raises:
            InvalidOptionError: there is no anchor, or no key.
            AuditError: the anchor cannot be written.
        """
        self._need("anchor_audit")
        return database.anchor_audit(self._engine, anchor, key=key, reset=reset)

    def cut_audit(self, *, older_than_seconds: float | None = None) -> int:
        """Delete old audit entries, except their digests of existing rows; return their number.

        Args:
            older_than_seconds: age in seconds; None: ``Audit.keep_seconds``.

        Raises:
            InvalidOptionError: the database was opened without an audit, or no age is configured.
            AuditError: an entry fails verification.
        """
        self._need("cut_audit")
        return database.cut_audit(self._engine, older_than_seconds)

    # --- keys -------------------------------------------------------------------------------------

    def key_status(self) -> KeyStatus:
        """Return the status of the key file of an encrypted database.

        Raises:
            InvalidOptionError: the database is not encrypted.
        """
        self._need("key_status")
        return _status(self._engine)

    def rotate_key(self, key: Key) -> None:
        """Protect the key file with another key from now on; contents are unchanged.

        Until they reopen the file, other processes can add new users only as long as keys that were
        generated in advance (64 at a time) remain.

        Raises:
            InvalidOptionError, KeyNeededError, ReadOnlyError
            KeyFileError: the key file cannot be written; the old key stays in effect, unless the
                message says that the new one is.
            AuditError: the key file is under the new key, but the audit only records the start of
                the rotation; or the start could not be recorded, and nothing was changed.
        """
        self._need("rotate_key")
        _rewrap(self._engine, key)

    def rotate_data_keys(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Rotation:
        """Re-encrypt contents with new data keys, while others read and write.

        If interrupted, everything stays readable, and running it again resumes. Values encrypted
        with the old keys stay in free pages until ``copy_compact``, but can no longer be decrypted.

        Args:
            user: only this user's.
            app: only this application's.
            progress: called with the number of a user's values that are done.

        Raises:
            InvalidOptionError, ReadOnlyError, KeyFileError, StorageError
        """
        self._need("rotate_data_keys", app=app, user=user)
        checked_callable("progress", progress)
        return _rotate(self._engine, user=user, app=app, progress=progress)

    # --- scopes -----------------------------------------------------------------------------------

    def as_user(self, user: str, *, app: str = "default", actor: str | None = None) -> Scope:
        """Open a scope, like ``scope``, on behalf of an actor that the authorizer checks.

        Args:
            user: the user who owns the data.
            app: the application.
            actor: the person, service or agent at work; None: the user.

        Raises:
            InvalidOptionError: a name is invalid, or the actor is not a str.
            AccessDeniedError: the authorizer refused access.
        """
        who = checked_optional_text("actor", actor)
        access = self._engine.access
        return self._scope(app, user, None if access is None else access.of(who or user))

    def _scope(self, app: str, user: str, access: Access | None) -> Scope:
        names.check_name(app, "app")
        names.check_name(user, "user")
        if access is not None:
            access.need("scope", app=app, user=user)
        return Scope(self._engine, app, user, access=access)

    def _pairs(self) -> list[tuple[str, str]]:
        return self._engine.store.read(
            lambda txn: [(app, user) for _, app, user in names.scopes(txn)]
        )

    # --- retention --------------------------------------------------------------------------------

    @property
    def retention(self) -> Retention:
        """Retention rules and expiry times of the database."""
        self._need("retention")
        return retention.Retention(self._engine)

    def sweep(
        self,
        *,
        now: float | None = None,
        limit: int = SWEEP_LIMIT,
        archive: ArchiveTarget | None = None,
        dry_run: bool = False,
    ) -> SweepReport:
        """Delete everything due by its own expiry or by rules, in small steps.

        It works on a full device, may be killed at any point and may run concurrently with others:
        whatever remains is still due.

        Args:
            now: the current time in seconds since 1970; None: the clock's.
            limit: the most things to remove; ``complete`` of the report is True if nothing more
                was due.
            archive: a file, or a callable that gets each line: receives everything before it is
                removed, as an export. If that fails, the data stays and the error is raised.
                After a crash the archive may hold things twice.
            dry_run: count what would be removed, and change nothing.

        Raises:
            InvalidOptionError, ReadOnlyError
            StorageError: or whatever ``archive`` raises; what was removed before stays removed.
        """
        self._need("sweep")
        checked_bool("dry_run", dry_run)
        count = checked_int("limit", limit, least=1)
        if self._engine.store.read_only and not dry_run:
            msg = "the database is open read-only; open it for writing, or sweep with dry_run=True"
            raise ReadOnlyError(msg)
        run = retention.SweepRun(
            self._engine,
            self._engine.now_ms() if now is None else _milliseconds(now),
            count,
            retention.SweepReport(dry_run=dry_run),
            audit=self.audit_sweep,
        )
        if archive is not None:
            run.exporter, run.write = (
                exchange.Archiving(self._engine),
                retention.archive_to(archive, is_own=self._is_own_file),
            )
        try:
            retention.sweep(run)
        finally:
            retention.note_sweep(run)
        return run.report

    def sweeper(
        self,
        *,
        interval_seconds: float = 60.0,
        archive: ArchiveTarget | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> Sweeper:
        """Sweep in the background until the ``with`` block ends or the handle is closed or lost.

        Args:
            interval_seconds: pause between sweeps when nothing is due.
            archive: as for ``sweep``.
            failed: called on the background thread with each exception; the next sweep retries.

        Raises:
            InvalidOptionError, ReadOnlyError
        """
        self._need("sweep")
        self._engine.store.environment()  # raises if the database is closed
        seconds = checked_optional_seconds("interval_seconds", interval_seconds)
        if seconds is None or seconds > _INTERVAL_SECONDS_MAX:
            msg = (
                f"interval_seconds: expected above 0 and up to {_INTERVAL_SECONDS_MAX:,} seconds, "
                f"got {shown(interval_seconds)}"
            )
            raise InvalidOptionError(msg)
        checked_callable("failed", failed)
        if archive is not None:
            retention.archive_to(archive, is_own=self._is_own_file)
        if self._engine.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
        made = retention.Sweeper(
            self,
            lambda swept: swept.sweep(limit=_STEP_LIMIT, archive=archive),
            seconds,
            failed=failed,
        )
        # In place: the handle wrapped by telemetry shares the set.
        self._sweepers.difference_update([each for each in self._sweepers if not each.running])
        self._sweepers.add(made)
        return made

    def _is_own_file(self, path: str) -> bool:
        ring = self._engine.store.vault
        return is_own_file(path, self.path, None if ring is None else ring.ring.path)

    def _stop_sweepers(self) -> None:
        for each in list(self._sweepers):
            each.stop()

    # --- erasure and holds ------------------------------------------------------------------------

    def erase(
        self,
        user: str,
        *,
        app: str | None = None,
        compact: bool = True,
        verify: bool = True,
        override_hold: bool = False,
        probes: Iterable[str | bytes] = (),
        key: bytes | None = None,
        name_in_receipt: bool = False,
        progress: CopyProgress | None = None,
    ) -> ErasureReceipt:
        """Remove everything a user owns, so that no byte of it is left in the file.

        One commit makes the user unreachable for every handle of every process; then data keys are
        shredded (in an encrypted file), rows are deleted in batches, and the file is swapped for a
        compact copy, which is scanned. The application's own state stays. The last step needs
        exclusive access to the file; without it, the receipt has ``bytes_gone=False``, and
        ``finish_erasures`` does the rest. Whatever is written for the user from now on stays.

        Args:
            user: the user to erase; it is no error if they own nothing.
            app: only in this application; None: in all of them.
            compact: False leaves the last step to ``finish_erasures``, for many users in one pass.
            verify: run the full ``check`` on the copy; False checks only its structure.
            override_hold: erase despite a legal hold; the receipt records it.
            probes: texts or bytes of the user to scan the copy for, in addition to the name.
            key: the key that signs the receipt; None: one of the database's own.
            name_in_receipt: put the user's name in the receipt, not only a keyed digest.
            progress: called with (sessions checked, total sessions) while the copy is checked.

        Raises:
            HeldError: something is under a legal hold; nothing was changed.
            InvalidOptionError, ReadOnlyError, CorruptValueError: nothing was changed.
            StorageError: nothing was changed, or the outcome of the first commit is unknown.
        """
        self._need("erase", app=app, user=user)
        if override_hold:
            self._need("override_hold", app=app, user=user)
        return erase_user(
            self._engine,
            user,
            app=app,
            compact=compact,
            verify=verify,
            override_hold=override_hold,
            probes=probes,
            key=key,
            name_in_receipt=name_in_receipt,
            progress=progress,
        )

    def finish_erasures(
        self, *, verify: bool = True, key: bytes | None = None, progress: CopyProgress | None = None
    ) -> list[ErasureReceipt]:
        """Finish earlier erasures with a single compaction; return a receipt for each.

        Arguments and errors are those of ``erase``.
        """
        self._need("finish_erasures")
        checked_callable("progress", progress)
        judge = self._judge(progress) if checked_bool("verify", verify) else structure_of
        return retention.finish_erasures(self._engine, judge, key=key)

    def would_erase(self, user: str, *, app: str | None = None) -> dict[str, int]:
        """Count what ``erase`` would remove: ``scopes``, ``rows``, and rows by kind.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        self._need("would_erase", app=app, user=user)
        return retention.would_erase(self._engine, user, app)

    def pending_erasures(self) -> int:
        """Count the unfinished erasures."""
        self._need("pending_erasures")
        return retention.count_pending(self._engine)

    def holds(self, *, user: str | None = None, app: str | None = None) -> list[Hold]:
        """List all legal holds, or those of one user or application."""
        self._need("holds", app=app, user=user)
        return retention.holds(self._engine, app, user)

    def hold(
        self, user: str, *, reason: str, app: str | None = None, session: str | None = None
    ) -> list[str]:
        """Place everything a user owns under a legal hold; return the applications it covers.

        Like ``erase``, it does not extend to applications that the user joins later.

        Args:
            user: the user.
            reason: a text of 1 to 1,000 characters.
            app: only in this application; None: in all of them.
            session: only sessions of this name; None: everything the user owns.

        Raises:
            InvalidOptionError, NotFoundError, ReadOnlyError, StorageError: nothing was changed.
        """
        self._need("hold", app=app, user=user, name=session)
        done = retention.hold_user(self._engine, user, app, session, reason=reason)
        return [own for own, _ in done]

    def release(
        self, user: str, *, app: str | None = None, session: str | None = None
    ) -> list[str]:
        """Release holds placed by ``hold``; return the applications that had one."""
        self._need("release", app=app, user=user, name=session)
        return retention.release_user(self._engine, user, app, session)

    def opt_out_memory(
        self, user: str, *, app: str | None = None, remove: bool = False
    ) -> list[str]:
        """Stop writing and searching a user's memories; return the applications it covers.

        Like ``erase``, it does not extend to applications that the user joins later. See
        ``Scope.opt_out_memory`` for the effect in each.

        Args:
            user: the user.
            app: only in this application; None: in all of them.
            remove: also remove existing memories.

        Raises:
            HeldError: a legal hold covers some memories to remove; nothing was changed.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        checked_bool("remove", remove)
        self._need("opt_out_memory", app=app, user=user)
        covered = retention.opt_out(self._engine, user, app, remove=remove)
        for own in covered if remove else ():
            self.scope(app=own, user=user).opt_out_memory(remove=True)
        return covered

    def opt_in_memory(self, user: str, *, app: str | None = None) -> list[str]:
        """Undo ``opt_out_memory``; return the applications in which the user had opted out."""
        self._need("opt_in_memory", app=app, user=user)
        return retention.opt_in(self._engine, user, app)

    @property
    def receipt_key(self) -> bytes:
        """Key that signs receipts when the caller gives none. Keep it secret."""
        self._need("receipt_key")
        return retention.receipt_key(self._engine.store)

    def _judge(self, progress: CopyProgress | None) -> Judge:
        return maintenance.judge_for(self._engine, checked_callable("progress", progress))
