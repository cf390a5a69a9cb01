"""``migrate``: an older file made one of the present format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from memcore.database.check import check_database
from memcore.database.copies import Progress
from memcore.errors import NotFoundError, StoreAccessError
from memcore.limits import FORMAT_VERSION
from memcore.options import checked_bool, checked_path
from memcore.session import Backing
from memcore.store import examined
from memcore.store.copying import Judge
from memcore.store.migrating import migrate_file
from memcore.tokens import TokenCounter, get_counter

__all__ = ["MigrationReport", "migrate"]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What ``migrate`` found and did."""

    path: str
    version_before: int
    version: int
    """The format that the file has now."""
    kept: str | None
    """Where the old file lies; None if it was not kept, or nothing was to be done."""


def migrate(
    path: str | os.PathLike[str],
    *,
    keep: bool = True,
    dry_run: bool = False,
    counter: str | TokenCounter | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Make a file of an older format one of the present one, by a proven copy in its place.

    Nobody may have it open. A file of the present format stays as it is.

    Args:
        path: the file.
        keep: leave the old file beside it, as ``<path>.format-<version>``.
        dry_run: only tell the format.
        counter: a custom token counter, if sessions were counted by one.
        progress: called with (sessions checked, sessions in all) while the copy is checked.

    Raises:
        NotFoundError: there is no such file.
        StoreAccessError: the name for the old file is taken.
        StoreFormatError: it is no memcore file, or one of a newer format.
        StoreLockedError, StoreFullError, CorruptStoreError: nothing was changed.
    """
    name = str(Path(checked_path("path", path)).resolve())
    if not os.path.lexists(name):
        msg = f"{name}: there is no such file to migrate"
        raise NotFoundError(msg)
    checked_bool("keep", keep)
    found = migrate_file(name, keep=None, judge=None, look=True)
    if checked_bool("dry_run", dry_run) or found >= FORMAT_VERSION:
        return MigrationReport(name, found, found, None)
    kept = f"{name}.format-{found}" if keep else None
    if kept is not None and os.path.lexists(kept):
        msg = f"{kept}: exists; move it away: the old file is to be kept under this name"
        raise StoreAccessError(msg)
    migrate_file(name, keep=kept, judge=_judge(counter, progress))
    return MigrationReport(name, found, FORMAT_VERSION, kept)


def _judge(counter: str | TokenCounter | None, progress: Progress | None) -> Judge:
    by = get_counter(counter)

    def judge(copy: str) -> list[str]:
        with examined(copy) as store:
            return check_database(Backing(store, by, "openai_chat"), progress)

    return judge
