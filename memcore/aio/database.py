"""AsyncDatabase and AsyncScope: whatever walks the file runs in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from memcore.aio.commit import BYTES_CHUNKS, in_pages
from memcore.aio.memory import AsyncMemories
from memcore.aio.session import AsyncLease, AsyncSession
from memcore.aio.state import AsyncSharedState
from memcore.aio.values import AsyncBlobStore, AsyncKeyValue, AsyncQuarantine
from memcore.audit.verify import AuditedEntry, AuditReport
from memcore.database import Database, Scope, open_database
from memcore.database.database import KeyStatus, Rotation
from memcore.database.stats import Branch, Difference
from memcore.database.warm import WarmStatus
from memcore.limits import SWEEP_LIMIT
from memcore.maintenance.backup import CompactReport
from memcore.maintenance.backup import Progress as CopyProgress
from memcore.model import ItemKind, SearchHit, SessionEntry
from memcore.options import refuse_copies
from memcore.privacy import RedactingFilter
from memcore.privacy.keyring import Key
from memcore.retention import ErasureReceipt, Hold, Retention, Sweeper, SweepReport
from memcore.retention.rules import ArchiveTarget
from memcore.session.checkpoints import Position
from memcore.session.compact import AnySummarizer
from memcore.session.content_filter import Guards, Redact
from memcore.session.content_filter import Redact as Demanded
from memcore.tokens import TokenCounter

if TYPE_CHECKING:
    from memcore.exchange.lines import Title
    from memcore.exchange.load import Imported

__all__ = [
    "AsyncDatabase",
    "AsyncScope",
    "open_async",
]


# --- AsyncDatabase and AsyncScope: whatever walks the file runs in a thread -----------------------


class _OpeningDatabase:
    """Result of ``memcore.aio.open``: await it, or use it in ``async with``."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self._path = path
        self._options = options
        self._database: AsyncDatabase | None = None

    def __await__(self) -> Generator[Any, None, AsyncDatabase]:
        return self._open().__await__()

    def __getattr__(self, name: str) -> NoReturn:
        msg = (
            f"the database is not open yet, so it has no {name!r}: 'db = await "
            "memcore.aio.open(...)' or 'async with memcore.aio.open(...) as db' opens it"
        )
        raise AttributeError(msg, name=name, obj=self)

    async def _open(self) -> AsyncDatabase:
        return AsyncDatabase(await asyncio.to_thread(open_database, self._path, **self._options))

    async def __aenter__(self) -> AsyncDatabase:
        self._database = await self._open()
        return self._database

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._database is not None:
            await self._database.close()


def open_async(path: str | os.PathLike[str], **options: Any) -> _OpeningDatabase:
    """``await memcore.aio.open(path)`` or ``async with memcore.aio.open(path) as db``.

    Options and errors are those of ``memcore.open``.
    """
    return _OpeningDatabase(path, options)


class AsyncDatabase:
    """As ``Database``; ``session`` and ``scope`` need no ``await``."""

    __reduce__ = refuse_copies

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"Async{self._database!r}"

    async def __aenter__(self) -> Self:
        self._database.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def sync(self) -> Database:
        """The synchronous handle of the same database."""
        return self._database

    def scope(self, *, user: str = "default", app: str = "default") -> AsyncScope:
        """As ``Database.scope``."""
        return AsyncScope(self._database.scope(user=user, app=app))

    def as_user(self, user: str, *, app: str = "default", actor: str | None = None) -> AsyncScope:
        """As ``Database.as_user``."""
        return AsyncScope(self._database.as_user(user, app=app, actor=actor))

    def session(
        self, session_id: str, *, auto_compact: AnySummarizer | None = None, **options: Any
    ) -> AsyncSession:
        """As ``Database.session``; ``auto_compact`` may be a coroutine function."""
        return AsyncSession(
            self._database.session(session_id, **options), auto_compact=auto_compact
        )

    async def compare(
        self, a: AsyncSession, b: AsyncSession, **positions: Position | None
    ) -> Difference:
        """As ``Database.compare``, in a thread."""
        one, other = (each.sync if isinstance(each, AsyncSession) else each for each in (a, b))
        return await asyncio.to_thread(self._database.compare, one, other, **positions)

    @asynccontextmanager
    async def sweeper(self, **options: Any) -> AsyncIterator[Sweeper]:
        """``async with db.sweeper(interval_seconds=60):``; as ``Database.sweeper``."""
        made = self._database.sweeper(**options)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.stop)

    # --- audit and keys ---------------------------------------------------------------------------

    # --- written by scripts/make_aio from Database: not to be edited by hand ---

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._database.path

    @property
    def durability(self) -> str:
        """Durability mode of the file: ``"full"``, ``"relaxed"`` or ``"none"``.

        See ``memcore.open``.
        """
        return self._database.durability

    @property
    def read_only(self) -> bool:
        """True if this handle refuses writes."""
        return self._database.read_only

    @property
    def needs_recovery(self) -> bool:
        """True if a read-only handle is one commit behind until a writer opens. Advisory."""
        return self._database.needs_recovery

    async def close(self) -> None:
        """Close the handle; the last one in a process closes the file. Idempotent.

        Raises:
            StorageError: pending access counts cannot be written; the handle is closed anyway.
        """
        await asyncio.to_thread(self._database.close)

    async def scopes(self) -> list[tuple[str, str]]:
        """List every ``(app, user)`` that owns anything."""
        return await asyncio.to_thread(self._database.scopes)

    async def sessions(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> list[SessionEntry]:
        """Iterate over all sessions, or those of one user or application.

        Each page is read in its own transaction.
        """
        return await asyncio.to_thread(lambda: list(self._database.sessions(user=user, app=app)))

    async def delete_session(
        self,
        session_id: str,
        *,
        user: str = "default",
        app: str = "default",
    ) -> bool:
        """Delete a session and its rows; return True if it existed."""
        return await asyncio.to_thread(
            self._database.delete_session, session_id, user=user, app=app
        )

    async def search(
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
        return await asyncio.to_thread(
            self._database.search,
            query,
            k=k,
            user=user,
            app=app,
            sessions=sessions,
            kinds=kinds,
            authors=authors,
            since=since,
            until=until,
            explain=explain,
            mode=mode,
            memories=memories,
        )

    async def index_sessions(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> int:
        """Bring the search indexes up to date; return the number of items added.

        Raises:
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._database.index_sessions, user=user, app=app)

    async def reindex(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> int:
        """Drop the search indexes and build them anew; return the number of items in them.

        Raises:
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._database.reindex, user=user, app=app)

    async def check(
        self,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Check everything: structure, checksums, index, chains, references. Empty means sound.

        Args:
            progress: called with (sessions done, total sessions).
        """
        return await asyncio.to_thread(self._database.check, progress=progress)

    @property
    def demands(self) -> dict[str, Any]:
        """Policies required of every writer of this file, as JSON: ``redact`` and ``guards``.

        ``names`` only reports if there are any: they are encrypted with the file's secret.

        Raises:
            CorruptValueError: the row is damaged.
        """
        return self._database.demands

    def log_filter(
        self,
        redact: Redact = None,
    ) -> RedactingFilter:
        """Return a ``logging.Filter`` that redacts as this file does; see RedactingFilter.

        Args:
            redact: the policy; None: the handle's own, or else the default.
        """
        return self._database.log_filter(redact)

    async def demand(
        self,
        *,
        redact: Demanded = None,
        guard: Guards | bool = None,
    ) -> None:
        """Change the policies that the file requires of its writers; the audit records it.

        It applies from the next open on: open handles keep the policies they were opened with.

        Args:
            redact: the new policy; None keeps the current one; False removes it.
            guard: the new guards; None keeps the current ones; False removes them.

        Raises:
            InvalidOptionError: ``redact`` is no policy, or ``guard`` no guard.
            ReadOnlyError, StorageError: nothing was changed.
        """
        await asyncio.to_thread(self._database.demand, redact=redact, guard=guard)

    async def branches(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> list[Branch]:
        """List the tree of sessions and their forks, with their checkpoints.

        Parents come before their forks. Deleted sessions that are kept for their forks are
        included, without a name. Uses one read transaction per scope.
        """
        return await asyncio.to_thread(self._database.branches, user=user, app=app)

    async def stats(self) -> dict[str, Any]:
        """Return sizes and counters of the file and of this process's handle on it."""
        return await asyncio.to_thread(self._database.stats)

    async def backup(
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
        await asyncio.to_thread(
            self._database.backup, path, compact=compact, verify=verify, progress=progress
        )

    async def copy_compact(
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
        return await asyncio.to_thread(
            self._database.copy_compact,
            durability=durability,
            allow_unsafe=allow_unsafe,
            verify=verify,
            progress=progress,
        )

    async def flush(self) -> None:
        """Flush everything committed so far to the device."""
        await asyncio.to_thread(self._database.flush)

    async def ship(
        self,
        *,
        timeout_seconds: float | None = 30.0,
    ) -> None:
        """Wait until everything committed before this call is in the warm copy.

        Args:
            timeout_seconds: the longest wait; None: no limit.

        Raises:
            InvalidOptionError: the database was opened without ``warm``.
            SupersededError: the copy was promoted.
            UnshippedError: it did not get there in time; the file has it, and it is shipped later.
        """
        await asyncio.to_thread(self._database.ship, timeout_seconds=timeout_seconds)

    async def warm_status(self) -> WarmStatus | None:
        """Return the state of the warm copy; None without one."""
        return await asyncio.to_thread(self._database.warm_status)

    async def export(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        app: str | None = None,
        format: str = "jsonl",  # noqa: A002 - as the synchronous one
        undone: bool = False,
        left_out: Callable[[str], None] | None = None,
        redact: Redact = None,
    ) -> AsyncIterator[bytes]:
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
        chunks = await asyncio.to_thread(
            self._database.export,
            session_id,
            user=user,
            app=app,
            format=format,
            undone=undone,
            left_out=left_out,
            redact=redact,
        )  # it may read before the first chunk
        async for found in in_pages(chunks, BYTES_CHUNKS, in_thread=True):
            yield found

    async def import_(
        self,
        lines: Iterable[bytes | str],
        *,
        rename: Callable[[Title], Title] | None = None,
        counter: str | TokenCounter | None = None,
        format: str = "auto",  # noqa: A002 - as the synchronous one
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
        return await asyncio.to_thread(
            self._database.import_,
            lines,
            rename=rename,
            counter=counter,
            format=format,
            policy=policy,
            orphans=orphans,
            on_conflict=on_conflict,
            unnamed=unnamed,
        )

    async def verify_audit(
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
        return await asyncio.to_thread(
            self._database.verify_audit, key=key, anchor=anchor, progress=progress
        )

    async def audit_entries(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> list[AuditedEntry]:
        """List the entries of a session's chain; without a session, a user's or the database's.

        A user or application that is not given is ``"default"``, if the other or a session is.

        Raises:
            NotFoundError: the session or user does not exist.
        """
        return await asyncio.to_thread(
            lambda: list(self._database.audit_entries(session_id, user=user, app=app))
        )

    async def anchor_audit(
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
        return await asyncio.to_thread(self._database.anchor_audit, anchor, key=key, reset=reset)

    async def cut_audit(
        self,
        *,
        older_than_seconds: float | None = None,
    ) -> int:
        """Delete old audit entries, except their digests of existing rows; return their number.

        Args:
            older_than_seconds: age in seconds; None: ``Audit.keep_seconds``.

        Raises:
            InvalidOptionError: the database was opened without an audit, or no age is configured.
            AuditError: an entry fails verification.
        """
        return await asyncio.to_thread(
            self._database.cut_audit, older_than_seconds=older_than_seconds
        )

    async def key_status(self) -> KeyStatus:
        """Return the status of the key file of an encrypted database.

        Raises:
            InvalidOptionError: the database is not encrypted.
        """
        return await asyncio.to_thread(self._database.key_status)

    async def rotate_key(
        self,
        key: Key,
    ) -> None:
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
        await asyncio.to_thread(self._database.rotate_key, key)

    async def rotate_data_keys(
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
        return await asyncio.to_thread(
            self._database.rotate_data_keys, user=user, app=app, progress=progress
        )

    @property
    def retention(self) -> Retention:
        """Retention rules and expiry times of the database."""
        return self._database.retention

    async def sweep(
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
        return await asyncio.to_thread(
            self._database.sweep, now=now, limit=limit, archive=archive, dry_run=dry_run
        )

    async def erase(
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
        return await asyncio.to_thread(
            self._database.erase,
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

    async def finish_erasures(
        self,
        *,
        verify: bool = True,
        key: bytes | None = None,
        progress: CopyProgress | None = None,
    ) -> list[ErasureReceipt]:
        """Finish earlier erasures with a single compaction; return a receipt for each.

        Arguments and errors are those of ``erase``.
        """
        return await asyncio.to_thread(
            self._database.finish_erasures, verify=verify, key=key, progress=progress
        )

    async def would_erase(
        self,
        user: str,
        *,
        app: str | None = None,
    ) -> dict[str, int]:
        """Count what ``erase`` would remove: ``scopes``, ``rows``, and rows by kind.

        Raises:
            InvalidOptionError, CorruptValueError
        """
        return await asyncio.to_thread(self._database.would_erase, user, app=app)

    async def pending_erasures(self) -> int:
        """Count the unfinished erasures."""
        return await asyncio.to_thread(self._database.pending_erasures)

    async def holds(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
    ) -> list[Hold]:
        """List all legal holds, or those of one user or application."""
        return await asyncio.to_thread(self._database.holds, user=user, app=app)

    async def hold(
        self,
        user: str,
        *,
        reason: str,
        app: str | None = None,
        session: str | None = None,
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
        return await asyncio.to_thread(
            self._database.hold, user, reason=reason, app=app, session=session
        )

    async def release(
        self,
        user: str,
        *,
        app: str | None = None,
        session: str | None = None,
    ) -> list[str]:
        """Release holds placed by ``hold``; return the applications that had one."""
        return await asyncio.to_thread(self._database.release, user, app=app, session=session)

    async def opt_out_memory(
        self,
        user: str,
        *,
        app: str | None = None,
        remove: bool = False,
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
        return await asyncio.to_thread(self._database.opt_out_memory, user, app=app, remove=remove)

    async def opt_in_memory(
        self,
        user: str,
        *,
        app: str | None = None,
    ) -> list[str]:
        """Undo ``opt_out_memory``; return the applications in which the user had opted out."""
        return await asyncio.to_thread(self._database.opt_in_memory, user, app=app)

    @property
    def receipt_key(self) -> bytes:
        """Key that signs receipts when the caller gives none. Keep it secret."""
        return self._database.receipt_key

    # --- end of what scripts/make_aio writes ---


class AsyncScope:
    """As ``Scope``."""

    __reduce__ = refuse_copies

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"Async{self._scope!r}"

    @property
    def user(self) -> str:
        """The user it serves."""
        return self._scope.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._scope.app

    def session(
        self, session_id: str, *, auto_compact: AnySummarizer | None = None, **options: Any
    ) -> AsyncSession:
        """As ``Scope.session``; ``auto_compact`` may be a coroutine function."""
        return AsyncSession(self._scope.session(session_id, **options), auto_compact=auto_compact)

    async def delete_session(self, session_id: str, *, lease: AsyncLease | None = None) -> bool:
        """As ``Scope.delete_session``."""
        held = None if lease is None else lease.sync
        return await asyncio.to_thread(self._scope.delete_session, session_id, lease=held)

    @property
    def state(self) -> AsyncSharedState:
        """As ``Scope.state``."""
        return AsyncSharedState(self._scope.state)

    @property
    def app_state(self) -> AsyncSharedState:
        """As ``Scope.app_state``."""
        return AsyncSharedState(self._scope.app_state)

    def kv(self, namespace: str) -> AsyncKeyValue:
        """As ``Scope.kv``."""
        return AsyncKeyValue(self._scope.kv(namespace))

    @property
    def memory(self) -> AsyncMemories:
        """As ``Scope.memory``."""
        return AsyncMemories(self._scope.memory)

    @property
    def blobs(self) -> AsyncBlobStore:
        """As ``Scope.blobs``."""
        return AsyncBlobStore(self._scope.blobs)

    @property
    def quarantine(self) -> AsyncQuarantine:
        """Quarantine of the scope's sessions: items that guards held back."""
        return AsyncQuarantine(self._scope.quarantine)

    # --- written by scripts/make_aio from Scope: not to be edited by hand ---

    @property
    def actor(self) -> str | None:
        """Actor passed to the authorizer; None without an authorizer."""
        return self._scope.actor

    async def sessions(self) -> list[SessionEntry]:
        """Iterate over the scope's sessions in name order, one read transaction per page."""
        return await asyncio.to_thread(lambda: list(self._scope.sessions()))

    async def search(
        self,
        query: str,
        *,
        k: int = 10,
        sessions: Iterable[str] | None = None,
        kinds: Iterable[ItemKind | str] | None = None,
        authors: Iterable[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        explain: bool = False,
        mode: str = "auto",
        memories: bool = False,
    ) -> list[SearchHit]:
        """Return the live items of the sessions that best match the words of a query, best first.

        The arguments are those of ``Session.search``; ``sessions`` limits it to those with these
        names. A session that the authorizer does not let the actor search is left out.
        With ``memories``, an active memory lends half of its score to the items that it rests on:
        what was said in other words is found by those of the memory.

        Raises:
            InvalidOptionError, EmbedderError, AccessDeniedError, CorruptValueError,
            StorageError: as for ``Session.search``.
        """
        return await asyncio.to_thread(
            self._scope.search,
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

    async def index_sessions(self) -> int:
        """Bring the search index up to date; return the number of items added to it.

        A search does so itself where much is missing. Each commit adds at most 256 items.

        Raises:
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._scope.index_sessions)

    async def reindex(self) -> int:
        """Drop the search index and build it anew; return the number of items in it.

        Raises:
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._scope.reindex)

    async def erase(
        self,
        *,
        compact: bool = True,
        verify: bool = True,
        override_hold: bool = False,
        probes: Iterable[str | bytes] = (),
        key: bytes | None = None,
        name_in_receipt: bool = False,
    ) -> ErasureReceipt:
        """Erase the user in this application: ``db.erase(user, app=app, ...)``."""
        return await asyncio.to_thread(
            self._scope.erase,
            compact=compact,
            verify=verify,
            override_hold=override_hold,
            probes=probes,
            key=key,
            name_in_receipt=name_in_receipt,
        )

    async def hold(
        self,
        *,
        reason: str,
    ) -> bool:
        """Put everything the user owns here under a legal hold; return True if it was under none.

        Until ``release``, erasing the user and deleting a session or thread are refused with
        HeldError, and sweeps and retention rules skip the scope.

        Raises:
            InvalidOptionError: the reason is not a text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._scope.hold, reason=reason)

    async def release(self) -> bool:
        """Release the hold on the scope; return True if there was one. Holds on sessions stay."""
        return await asyncio.to_thread(self._scope.release)

    async def holds(self) -> list[Hold]:
        """List the holds on the scope and on its sessions."""
        return await asyncio.to_thread(self._scope.holds)

    @property
    def memory_opt_out(self) -> bool:
        """True if the user opted out of long-term memory."""
        return self._scope.memory_opt_out

    async def opt_out_memory(
        self,
        *,
        remove: bool = False,
    ) -> int:
        """Stop writing and searching the user's memories; return the number of rows removed.

        Memory services, graph stores and agents' files then store nothing and find nothing.
        Sessions, states and ``kv`` keep working.

        Args:
            remove: also remove existing memories. If it is cut off, the next sweep or open removes
                the rest of the user's own memory; call it again for what adapters store.

        Raises:
            HeldError: a legal hold covers memories to remove; nothing was changed.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._scope.opt_out_memory, remove=remove)

    async def opt_in_memory(self) -> bool:
        """Undo ``opt_out_memory``; return True if the user had opted out."""
        return await asyncio.to_thread(self._scope.opt_in_memory)

    # --- end of what scripts/make_aio writes ---
