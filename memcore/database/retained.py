"""What stays how long, as the administrator's handle offers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from memcore.audit.cutting import cut_chain
from memcore.database.archiving import Archiving
from memcore.database.entrance import Entrance
from memcore.errors import InvalidOptionError, ReadOnlyError
from memcore.options import checked_bool, checked_callable, checked_int, checked_optional_seconds
from memcore.retention import (
    ArchiveTarget,
    AuditSweep,
    Retention,
    Run,
    Sweeper,
    SweepReport,
    archive_to,
    note_sweep,
    sweep,
)
from memcore.session import Backing

__all__ = ["Retained"]

_LIMIT: Final = 100_000
_STEP_LIMIT: Final = 1000
"""What one sweep of the background thread removes at most."""
_NOW_MAX: Final = 2**40


class Retained(Entrance):
    """The part of a Database that is about retention."""

    def __init__(self, backing: Backing) -> None:
        super().__init__(backing)
        self._sweepers: WeakSet[Sweeper] = WeakSet()
        self.audit_sweep: AuditSweep | None = None if backing.audit is None else _cut
        """Removes entries of the audit log that rules say are too old; None: none goes."""

    @property
    def retention(self) -> Retention:
        """What stays how long: rules, and times of single things."""
        self._need("retention")
        return Retention(self._backing)

    def sweep(
        self,
        *,
        now: float | None = None,
        limit: int = _LIMIT,
        archive: ArchiveTarget | None = None,
        dry_run: bool = False,
    ) -> SweepReport:
        """Remove what is due by its own time or by rules, piece by piece; works on a full device.

        It may be killed at any point and run beside others: what is left is due all the same.

        Args:
            now: what time it is, in seconds since 1970; None: the clock's.
            limit: how many things it removes at most; ``complete`` of the report tells whether
                that was all.
            archive: a file, or what is called with each line, that gets what leaves before it
                leaves, as an export. Where that fails the data stays, and the error is raised.
                Things may be in it twice after a crash.
            dry_run: count what would go, and change nothing.

        Raises:
            InvalidOptionError, ReadOnlyError, StorageError, and what ``archive`` raises; what went
            before that is gone.
        """
        self._need("sweep")
        checked_bool("dry_run", dry_run)
        count = checked_int("limit", limit, least=1)
        if self._backing.store.read_only and not dry_run:
            msg = "the database is open read-only; open it for writing, or sweep with dry_run=True"
            raise ReadOnlyError(msg)
        run = Run(
            self._backing,
            self._backing.now_ms() if now is None else _milliseconds(now),
            count,
            SweepReport(dry_run=dry_run),
            audit=self.audit_sweep,
        )
        if archive is not None:
            run.exporter, run.write = Archiving(self._backing), archive_to(archive)
        try:
            sweep(run)
        finally:
            note_sweep(run)
        return run.report

    def sweeper(
        self,
        *,
        interval_seconds: float = 60.0,
        archive: ArchiveTarget | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> Sweeper:
        """Sweep in the background until the ``with`` block ends, or the database is closed.

        Args:
            interval_seconds: how long it rests when nothing is due.
            archive: as of ``sweep``.
            failed: called, on the thread, with what a sweep raised; the next one tries again.

        Raises:
            InvalidOptionError, ReadOnlyError
        """
        self._need("sweep")
        seconds = checked_optional_seconds("interval_seconds", interval_seconds)
        if seconds is None:
            msg = "interval_seconds: expected a number of seconds above 0, got None"
            raise InvalidOptionError(msg)
        checked_callable("failed", failed)
        if archive is not None:
            archive_to(archive)
        if self._backing.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
        made = Sweeper(
            lambda: self.sweep(limit=_STEP_LIMIT, archive=archive), seconds, failed=failed
        )
        self._sweepers.add(made)
        return made

    def _stop_sweepers(self) -> None:
        for each in list(self._sweepers):
            each.stop()


def _cut(backing: Backing, scope: int, session: int, before_ms: int, most: int) -> int:
    return cut_chain(backing.store, (scope, session), before_ms, most=most)


def _milliseconds(now: object) -> int:
    is_number = isinstance(now, int | float) and not isinstance(now, bool)
    if not is_number or not 0 <= now < _NOW_MAX:  # type: ignore[operator]
        msg = f"now: expected seconds since 1970, got {now!r}"
        raise InvalidOptionError(msg)
    return int(now * 1000)  # type: ignore[operator]
