"""Database: the open file, the administrator's handle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import Any, Self

from memcore import names
from memcore.compaction import CompactionPolicy
from memcore.database.admission import Guards, demand, read_demand
from memcore.database.admission import Redact as Demanded
from memcore.database.audited import Audited
from memcore.database.branches import Branch, branches_of
from memcore.database.check import check_database
from memcore.database.copies import CompactReport, Progress, check_mode, judge_for
from memcore.database.counted import count_everything
from memcore.database.difference import Difference, compare
from memcore.database.exchange import Title, parse_line
from memcore.database.exporting import check_form, export_sessions
from memcore.database.forgetting import Forgetting
from memcore.database.importing import Imported, ImportOptions, import_lines
from memcore.database.keying import Keyed
from memcore.database.redacted import redacted_lines
from memcore.database.retained import Retained
from memcore.database.scope import Scope
from memcore.database.sharing import export_shared
from memcore.model import SessionEntry, Summarize
from memcore.options import checked_bool, checked_path
from memcore.privacy import RedactingFilter, Redaction
from memcore.retention import marking_gone
from memcore.session import Backing, Session
from memcore.session.checkpointing import Position
from memcore.session.outgoing import Redact, redacts_at
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Database"]


class Database(Retained, Audited, Forgetting, Keyed):
    """An open memcore file. Use it as a context manager, or close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - {"backing"})  # that is for memcore's own facades

    def __repr__(self) -> str:
        return f"Database({self.path!r}, durability={self.durability!r})"

    @property
    def backing(self) -> Backing:
        """What all handles of this database share (for memcore's own facades)."""
        return self._backing

    @property
    def path(self) -> str:
        """The file."""
        return self._backing.store.path

    @property
    def durability(self) -> str:
        """The mode of the file: ``"full"``, ``"relaxed"`` or ``"none"``; see ``memcore.open``."""
        return self._backing.store.durability

    @property
    def read_only(self) -> bool:
        """Whether this handle refuses writes."""
        return self._backing.store.read_only

    @property
    def needs_recovery(self) -> bool:
        """Advisory, read-only handles: the last commit is whole only after a writer opens."""
        return self._backing.store.needs_recovery

    def close(self) -> None:
        """Close the handle; the last one of a process closes the file. Idempotent.

        Raises:
            StorageError: what was counted of readings cannot be written; the handle is closed.
        """
        self._stop_sweepers()
        try:
            self._backing.write_uses()
        finally:
            self._backing.unwritten.clear()
            self._backing.store.close()

    # --- scopes and sessions ----------------------------------------------------------------------

    def scope(self, *, user: str = "default", app: str = "default") -> Scope:
        """The handle that serves one user of one application and can reach nothing else.

        Raises:
            InvalidOptionError: a name is not legal.
            AccessDeniedError: the authorizer refused it.
        """
        return self._scope(app, user, self._backing.access)

    def session(
        self,
        session_id: str,
        *,
        user: str = "default",
        app: str = "default",
        policy: str | None = None,
        orphans: str = "raise",
        counter: str | TokenCounter | None = None,
        recount: bool | None = None,
        compaction: CompactionPolicy | str | Mapping[str, Any] | None = None,
        state: Any = None,
        create: bool = True,
        access_counts: bool | None = None,
        auto_compact: Summarize | None = None,
        auto_recover: bool = False,
    ) -> Session:
        """A session of a scope: ``db.scope(user=, app=).session(session_id, ...)``."""
        return self.scope(user=user, app=app).session(
            session_id,
            policy=policy,
            orphans=orphans,
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
        """All ``(app, user)`` that own anything."""
        self._need("scopes")
        return self._pairs()

    def sessions(
        self, *, user: str | None = None, app: str | None = None
    ) -> Iterator[SessionEntry]:
        """All sessions, or those of one user or application, a page a read transaction."""
        self._need("sessions", app=app, user=user)
        return self._sessions(user, app)

    def _sessions(self, user: str | None, app: str | None) -> Iterator[SessionEntry]:
        for found_app, found_user in self._pairs():
            if (user is None or user == found_user) and (app is None or app == found_app):
                yield from Scope(self._backing, found_app, found_user).sessions()

    def delete_session(
        self, session_id: str, *, user: str = "default", app: str = "default"
    ) -> bool:
        """Delete a session and its rows; whether there was one."""
        return self.scope(user=user, app=app).delete_session(session_id)

    # --- care -------------------------------------------------------------------------------------

    def check(self, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Walk everything: structure, checksums, index, chains, references. Empty means sound.

        Args:
            progress: called with (sessions done, sessions in all).
        """
        self._need("check")
        return check_database(self._backing, progress)

    @property
    def demands(self) -> dict[str, Any]:
        """What the file demands of who writes to it: ``redact`` and ``guards``, as JSON.

        Of ``names`` only whether there are any: who they are stands under the file's secret.

        Raises:
            CorruptValueError: the row is damaged.
        """
        self._need("demands")
        return self._backing.store.read(read_demand).shown()

    def log_filter(self, redact: Redact = None) -> RedactingFilter:
        """A ``logging.Filter`` for handlers that redacts as this file does: see RedactingFilter.

        Args:
            redact: the policy; None: that of the handle, or else the default one.
        """
        self._need("log_filter")
        border = self._backing.border
        own = None if border is None else border.redaction
        policy = own.policy if redact is None and isinstance(own, Redaction) else redact
        secret = self._backing.store.secret.value()
        return RedactingFilter("default" if policy is None else policy, secret=secret)

    def demand(self, *, redact: Demanded = None, guard: Guards | bool = None) -> None:
        """Change what the file demands of who opens it; the audit notes it.

        It holds from the next opening on: handles that are open go on as they were opened.

        Args:
            redact: the policy from now on; None: the one there is; False: none.
            guard: the guards from now on; None: those there are; False: none.

        Raises:
            InvalidOptionError: they are none.
            ReadOnlyError, StorageError: nothing was changed.
        """
        self._need("demand")
        demand(self._backing.store, redact, guard)

    def branches(self, *, user: str | None = None, app: str | None = None) -> list[Branch]:
        """The tree that forks make of the sessions, with their checkpoints.

        Parents come before their forks. Deleted sessions that stay for their forks are there, too,
        without a name. One read transaction a scope.
        """
        self._need("branches", app=app, user=user)
        found: list[Branch] = []
        for its_app, its_user in self._pairs():
            if user not in (None, its_user) or app not in (None, its_app):
                continue

            def collect(txn: ReadTxn, app: str = its_app, user: str = its_user) -> list[Branch]:
                scope = names.scope_of(txn, app, user)
                return [] if scope is None else list(branches_of(txn, scope, app, user))

            found += self._backing.store.read(collect)
        return found

    def compare(
        self,
        a: Session,
        b: Session,
        *,
        at: Position | None = None,
        other_at: Position | None = None,
    ) -> Difference:
        """What two histories begin with together, and what each has for itself behind that.

        Args:
            a: a session of this database.
            b: another one, or the same.
            at: where to look at ``a``: a live seq, a checkpoint or its name; None: all of it.
            other_at: the same of ``b``.

        Raises:
            NotFoundError: there is no such session or position.
            CorruptValueError: a row is damaged.
        """
        return compare(a, b, at=at, other_at=other_at)

    def stats(self) -> dict[str, Any]:
        """Sizes and counters of the file and of this process's handle on it."""
        self._need("stats")
        return count_everything(self._backing, self._pairs())

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        compact: bool = True,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """Copy the database to a new file while others read and write.

        The copy is made under another name, flushed and proven sound before it gets its own.

        Args:
            path: the file to make.
            compact: leave free pages out.
            verify: run the whole ``check`` on the copy; False walks its structure only.
            progress: called with (sessions checked, sessions in all) while the copy is checked.

        Raises:
            StoreAccessError: the target exists or cannot be written.
            StoreFullError: no space is left for the copy.
            CorruptStoreError: the copy has findings, so the database has them; nothing was made.
        """
        target = checked_path("path", path)
        self._need("backup", name=target)
        checked_bool("compact", compact)
        judge = judge_for(self._backing, progress) if checked_bool("verify", verify) else None
        self._backing.store.backup(target, compact=compact, judge=judge)

    def copy_compact(
        self,
        *,
        durability: str | None = None,
        allow_unsafe: bool = False,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Give free pages back to the file system: swap the file for a compact, proven copy.

        It needs the file alone: no other process may have it open. Handles of this process go on;
        writers wait until it is done. Killed or cut off at any point it leaves the old file or the
        new one, whole. The copy needs room beside the file.

        Args:
            durability: the mode from now on; this is how a database changes its mode.
            allow_unsafe: consent to ``durability="none"``.
            verify: run the whole ``check`` on the copy; False walks its structure only.
            progress: called with (sessions checked, sessions in all) while the copy is checked.

        Raises:
            StoreLockedError: another process has the file open; nothing was changed.
            StoreFullError: no space is left for the copy; nothing was changed.
            CorruptStoreError: the copy has findings; nothing was changed.
            InvalidOptionError, ReadOnlyError, StoreAccessError: nothing was changed.
            StorageError: the swap may not survive a power cut; open the database anew.
        """
        self._need("copy_compact")
        check_mode(durability, allow_unsafe=checked_bool("allow_unsafe", allow_unsafe))
        judge = judge_for(self._backing, progress) if checked_bool("verify", verify) else None
        store = self._backing.store
        with marking_gone(store):
            before, after = store.copy_compact(durability=durability, judge=judge)
        return CompactReport(before, after, self.durability)

    def flush(self) -> None:
        """Push everything committed so far to the device."""
        self._backing.store.flush()

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
        """All sessions, or those of one name, user or application, as pieces of JSON lines.

        The state that the sessions of a user share follows, if no name is given; without a user,
        those of the applications, too.

        Args:
            session_id: only sessions of this name.
            user: only this user's.
            app: only this application's.
            format: ``"jsonl"`` holds everything; ``"openai-chat"``, ``"openai-responses"`` and
                ``"anthropic"`` are a line ``{"id", "messages"}`` a session; nothing is converted.
            undone: with the items that were undone (jsonl only).
            left_out: gets a line of text for each session of which messages cannot hold
                everything (events, meta, compactions); without it, that is an error.
            redact: write placeholders in the place of what this policy looks for.

        Raises:
            InvalidOptionError, NotFoundError, CorruptValueError
        """
        check_form(format, undone=undone)
        self._need("export", app=app, user=user, name=session_id)
        entries = self._sessions(user, app)
        places = ((found.app, found.user, found.session_id) for found in entries)
        chosen = (place for place in places if session_id in (None, place[2]))
        backing = self._backing
        if redact not in (None, False):
            return self._redacted(
                chosen,
                session_id,
                (user, app),
                redact,
                form=format,
                undone=undone,
                left_out=left_out,
            )
        found = export_sessions(backing, chosen, form=format, undone=undone, left_out=left_out)
        if session_id is not None:
            return found
        shared = export_shared(backing, user=user, app=app, form=format, left_out=left_out)
        return chain(found, shared)

    def _redacted(
        self,
        chosen: Iterable[tuple[str, str, str]],
        session_id: str | None,
        owner: tuple[str | None, str | None],
        redact: Redact,
        **options: Any,
    ) -> Iterator[bytes]:
        """The lines of an export, each redacted as its session would have been stored."""
        backing = self._backing
        for place in chosen:
            found = export_sessions(backing, [place], **options)
            yield from redacted_lines(found, redacts_at(backing, redact, place))
        if session_id is None:
            form, left_out = options["form"], options["left_out"]
            shared = export_shared(
                backing, user=owner[0], app=owner[1], form=form, left_out=left_out
            )
            for line in shared:
                said = parse_line(line)["shared"]
                owned = said["app"], said["user"] or "", None
                yield from redacted_lines([line], redacts_at(backing, redact, owned))

    def import_(
        self,
        lines: Iterable[bytes],
        *,
        rename: Callable[[Title], Title] | None = None,
        counter: str | TokenCounter | None = None,
        format: str = "auto",  # noqa: A002 - the command line's name
        policy: str | None = None,
        orphans: str = "keep",
        on_conflict: str = "error",
        unnamed: str = "line",
    ) -> Imported:
        """Store the sessions of an export with all that is known of them, and conversations.

        A conversation is a line ``{"id", "messages"}``, or a list of messages; with ``metadata``
        as an export writes it, it comes back under its user and application. States of users and
        applications get the fields that they lack; those that they have stay.

        A session that is there already, the same, is counted as ``skipped``, so that an import
        which was interrupted can be done again. One that cannot be stored is listed in
        ``failures``, and the others are stored. Many small ones share a commit.

        Args:
            lines: a file opened with ``"rb"``, or any lines.
            rename: may give a session another name, user or application.
            counter: counts tokens in place of the counter that the export names.
            format: ``"jsonl"`` takes sessions of an export alone, the name of another format of
                ``export`` conversations alone, ``"auto"`` both.
            policy: the pair policy of conversations; None: as their line says, or the database's.
            orphans: of conversations, results without their call: ``"keep"`` or ``"raise"``.
            on_conflict: if another session has the name: ``"error"`` (listed in ``failures``),
                ``"skip"`` (listed in ``left_out``), ``"rename"`` (``NAME (2)``), or ``"append"``:
                the messages that a session lacks of a conversation that begins like it.
            unnamed: what conversations without an id are named after, with their line's number.

        Raises:
            InvalidOptionError, ReadOnlyError, StorageError
        """
        self._need("import")
        by = None if counter is None else get_counter(counter)
        options = ImportOptions(
            rename=rename, counter=by, format=format, policy=policy, orphans=orphans,
            on_conflict=on_conflict, unnamed=unnamed,
        )  # fmt: skip
        return import_lines(self._backing, lines, options)
