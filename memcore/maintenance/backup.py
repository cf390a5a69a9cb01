"""Backups: full copies verified as sound, restore, migration of older formats."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from memcore import maintenance, retention, session, store
from memcore.codec.keys import SECRET_KEY
from memcore.errors import (
    CorruptStoreError,
    InvalidOptionError,
    KeyFileError,
    MemcoreError,
    NotFoundError,
    StoreAccessError,
)
from memcore.limits import FORMAT_VERSION, REMOVAL_PIECES_OPENING
from memcore.maintenance.salvage_rows import (
    DATABASE_CARE,
    SCOPE_NAMES,
    erased_scopes,
    is_row,
    names_in,
    owner_in,
)
from memcore.options import checked_bool, checked_callable, checked_file, checked_path
from memcore.privacy.keyring import secret_of
from memcore.records import record
from memcore.store import open_detached, open_store
from memcore.store.encryption import waiting_secret
from memcore.store.page_scan import PageScan
from memcore.store.store import KEYS_SUFFIX, KeyOptions, access_of, need_newest
from memcore.store.transaction import is_audited
from memcore.tokens import TokenCounter, get_counter

if TYPE_CHECKING:
    from memcore.privacy.keyring import Key
    from memcore.session import Engine
    from memcore.store.copy import Judge
    from memcore.store.encryption import RowCipher

__all__ = [
    "CompactReport",
    "MigrationReport",
    "Progress",
    "RestoreReport",
    "judge_for",
    "migrate",
    "restore",
]


# --- Full copies of a database: verifying a copy, and restoring a backup --------------------------

Progress: TypeAlias = Callable[[int, int], None]


@record(frozen=True, slots=True)
class CompactReport:
    """Result of ``Database.copy_compact``."""

    bytes_before: int
    bytes_after: int
    durability: str
    """The durability mode of the file now."""


@record(frozen=True, slots=True)
class RestoreReport:
    """Result of ``restore``."""

    path: str
    bytes: int
    kept: str | None
    """Path of the replaced file; None if there was none or it was not kept."""
    findings: tuple[str, ...]
    """Findings that ``force`` accepted."""
    unsure: tuple[str, ...] = ()
    """Work that is left to the caller: users who may have been erased in the replaced file, who
    kept their keys and are back if the backup has them; users to remove; a key file to copy."""


def judge_for(engine: Engine, progress: Progress | None) -> Judge:
    """Return a function that runs the full check on a copy of this database."""

    def judge(path: str) -> list[str]:
        with open_detached(path, vault=engine.store.vault) as store:
            copy = session.Engine(
                store, engine.counter, engine.policy, counters=dict(engine.counters)
            )
            return maintenance.check_database(copy, progress)

    return judge


def restore(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    replace: bool = False,
    keep: bool = True,
    force: bool = False,
    dry_run: bool = False,
    counter: str | TokenCounter | None = None,
    progress: Progress | None = None,
    key: Key | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> RestoreReport:
    """Atomically put a verified copy of the backup ``source`` at ``target``.

    A replaced file is kept next to the target as ``<target>.before-restore-<time>``: restores are
    done in haste, and whatever was written since the backup exists only in the old file, damaged or
    not.

    Args:
        source: a memcore file; it is only read, and may be in use.
        target: the file to create or replace.
        replace: allow the target to exist; no process, including this one, may have it open.
        keep: keep the replaced file.
        force: accept a source with findings, provided that it can be opened.
        dry_run: check the source, and write nothing.
        counter: a custom token counter, if sessions of the source were counted by one.
        progress: called with (sessions checked, total sessions) while the copy is checked.
        key: opens the key file of an encrypted source.
        key_file: path of the key file; None: next to the target, or else next to the source. It
            stays there: a target without one needs a copy of it.

    Raises:
        KeyNeededError, WrongKeyError: the contents cannot be read.
        KeyFileError: the key file is missing, damaged, or older than the backup. A newer one is
            correct: users erased since the backup was made stay erased.
        NotFoundError: there is no source.
        StoreAccessError: the target exists and ``replace`` is False, or it cannot be written.
        StoreLockedError: the target is open.
        StoreFullError: there is no space left for the copy.
        CorruptStoreError, StoreFormatError: the source is damaged (``salvage`` can read it), or is
            not a memcore file.
        InvalidOptionError: source and target are the same file, or an option has the wrong type.
    """
    options = (("replace", replace), ("keep", keep), ("force", force), ("dry_run", dry_run))
    for name, value in options:
        checked_bool(name, value)
    checked_callable("progress", progress)
    backup, final = (
        str(Path(checked_path(name, path)).resolve())
        for name, path in (("source", source), ("target", target))
    )
    if not os.path.exists(backup):  # which knows no name that is too long, either
        msg = f"{backup:.200}: there is no such file to restore from"
        raise NotFoundError(msg)
    exists = os.path.lexists(final)
    if exists and Path(backup).samefile(final):
        msg = (
            f"{final} is the backup itself: move it to another name, and restore it from there to"
            " this one"
        )
        raise InvalidOptionError(msg)
    if exists and not replace:
        msg = f"{final} exists; pass replace=True to put the backup in its place"
        raise StoreAccessError(msg)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = _free_name(f"{final}.before-restore-{stamp}") if exists and keep else None
    accepted: list[str] = []
    unsure: list[str] = []
    access = access_of(key, key_file)
    if access is not None and key_file is None and os.path.lexists(final + KEYS_SUFFIX):
        access = KeyOptions(access.provider, final + KEYS_SUFFIX)
    store = open_store(backup, read_only=True, access=access)
    try:
        if store.vault is not None:
            need_newest(store.environment(), store.vault)
        engine = session.Engine(store, get_counter(counter), "openai_chat")
        if dry_run:
            accepted += _checked(engine, progress, force=force)
            return RestoreReport(final, Path(backup).stat().st_size, kept, tuple(accepted))
        check = judge_for(engine, progress)

        def judge(path: str) -> list[str]:
            findings = check(path)
            if findings and not force:
                return findings
            accepted.extend(findings)
            if exists:  # nobody else has it open while the copy is verified
                unsure.extend(_settle(final, store.vault))
            return []

        store.restore(final, kept=kept, replace=replace, judge=judge)
    except CorruptStoreError as error:
        msg = f"{backup} is no sound backup, nothing was restored: {error}"
        raise CorruptStoreError(msg) from error
    finally:
        store.close()
    unsure += _remove_erased(final, backup, access, get_counter(counter))
    return RestoreReport(final, Path(final).stat().st_size, kept, tuple(accepted), tuple(unsure))


def _remove_erased(
    target: str, backup: str, access: KeyOptions | None, counter: TokenCounter
) -> list[str]:
    """Remove users from a restored file who were erased since the backup was made.

    Every opening for writing does so; until then they are listed, and cannot be read.

    Returns:
        What is still to be done by the caller.
    """
    if access is None:
        return []
    if not os.path.lexists(access.path_for(target)):
        keys = access.path_for(backup)
        return [f"its key file is not next to it: copy {keys} to {target}{KEYS_SUFFIX}"]
    try:
        with closing(open_store(target, read_only=True, access=access)) as restored:
            if not retention.has_shredded(restored):
                return []
            if restored.read(lambda txn: is_audited(txn, target)):  # this would not be audited
                told = "users who were erased since the backup was made are still listed"
                return [f"{told}; the next opening for writing, with the audit's key, removes them"]
        with closing(open_store(target, access=access)) as restored:
            engine = session.Engine(restored, counter, "openai_chat")
            retention.bury_shredded(engine)
            retention.resume_erasures(engine, pieces=REMOVAL_PIECES_OPENING)
    except MemcoreError as error:
        return [
            f"users who were erased since the backup was made, if any, are still listed: {error}"
        ]
    return []


def _checked(engine: Engine, progress: Progress | None, *, force: bool) -> list[str]:
    """Return what is wrong with a backup; without ``force``, raise the first of it."""
    findings = maintenance.check_database(engine, progress)
    if findings and not force:
        raise CorruptStoreError(findings[0])
    return findings


def _settle(target: str, vault: RowCipher | None) -> list[str]:
    """Finish pending work of the file to be replaced, which the backup may not record.

    An erased user whose key still exists would come back with the backup, so such keys are
    destroyed if the key file belongs to the replaced file. A pending secret is written to its file.
    The replaced file may be damaged, so it is scanned page by page. Users whose erasure is
    uncertain keep their keys and are returned.

    Raises:
        KeyFileError, StoreFullError, StoreAccessError: there is no space, or no permission.
        OSError
    """
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        care = PageScan(fd, is_row, vault, within=DATABASE_CARE)
        care.read()
        for at in care.rows.get(SECRET_KEY, ()):
            kept = waiting_secret(care.value(SECRET_KEY, at), os.fstat(fd).st_ino)
            if kept is not None:
                secret_of(target, create=True, made=kept)
        if vault is None or not vault.ring.owner or owner_in(care) != vault.ring.owner:
            return []
        named = PageScan(fd, is_row, vault, within=SCOPE_NAMES)
        named.read()
        erased, unsure = erased_scopes(care, named)
        gone = [each for each in erased if vault.ring.of_scope(each)]
        if gone:
            vault.shred(gone)
        who = names_in(named)
        return [
            f"user {user!r} in app {app!r} may have been erased in the file that was replaced"
            for _, app, user in (who[each] for each in sorted(unsure) if vault.ring.of_scope(each))
        ]
    except KeyFileError as error:
        raise KeyFileError(
            f"{target}: keys of erased users await shredding, and a backup would bring them back;"
            f" nothing was restored: {error}"
        ) from error
    finally:
        os.close(fd)


def _free_name(path: str) -> str:
    number, name = 1, path
    while os.path.lexists(name):
        number += 1
        name = f"{path}-{number}"
    return name


# --- ``migrate``: upgrading an older file to the current format -----------------------------------


@record(frozen=True, slots=True)
class MigrationReport:
    """Result of ``migrate``."""

    path: str
    version_before: int
    version: int
    """The format of the file now."""
    kept: str | None
    """Path of the old file; None if it was not kept, or there was nothing to do."""


def migrate(
    path: str | os.PathLike[str],
    *,
    keep: bool = True,
    dry_run: bool = False,
    counter: str | TokenCounter | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Upgrade a file of an older format by replacing it with a verified copy in the current one.

    The file may not be open. A file of the current format is left as it is.

    Args:
        path: the file.
        keep: keep the old file as ``<path>.format-<version>``.
        dry_run: only report the format.
        counter: a custom token counter, if sessions were counted by one.
        progress: called with (sessions checked, total sessions) while the copy is checked.

    Raises:
        NotFoundError: there is no such file.
        StoreAccessError: the name for the old file is taken.
        StoreFormatError: it is not a memcore file, or has a newer format.
        StoreLockedError, StoreFullError, CorruptStoreError: nothing was changed.
    """
    name = str(Path(checked_file("path", path)).resolve())
    if not os.path.lexists(name):
        msg = f"{name}: there is no such file to migrate"
        raise NotFoundError(msg)
    checked_bool("keep", keep)
    checked_callable("progress", progress)
    found = store.migrate_file(name, keep=None, judge=None, look=True)
    if checked_bool("dry_run", dry_run) or found >= FORMAT_VERSION:
        return MigrationReport(name, found, found, None)
    kept = f"{name}.format-{found}" if keep else None
    if kept is not None and os.path.lexists(kept):
        msg = f"{kept} exists; move it away: the old file is to be kept under this name"
        raise StoreAccessError(msg)
    store.migrate_file(name, keep=kept, judge=_judge(counter, progress))
    return MigrationReport(name, found, FORMAT_VERSION, kept)


def _judge(counter: str | TokenCounter | None, progress: Progress | None) -> Judge:
    by = get_counter(counter)

    def judge(copy: str) -> list[str]:
        with open_detached(copy) as store:
            return maintenance.check_database(session.Engine(store, by, "openai_chat"), progress)

    return judge
