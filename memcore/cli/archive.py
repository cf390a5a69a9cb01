"""``memcore archive``: list, write out and erase what sweeps have put into an archive."""

from __future__ import annotations

import os

import click

import memcore
from memcore.cli.export import export_target
from memcore.cli.options import (
    ExitCode,
    app_option,
    dry_run_option,
    json_option,
    need_choice,
    user_option,
    verb,
    yes_option,
)
from memcore.cli.output import complain, emit_json, print_table, timestamp, warn
from memcore.options import checked_file, counted

__all__ = [
    "archive_of",
    "archived_data",
]


def archive_of(target: str) -> memcore.Archive:
    """Open an archive, with the key in ``MEMCORE_ARCHIVE_KEY`` (64 hex digits) if there is one.

    Raises:
        InvalidOptionError: the target or the key is invalid.
    """
    said = os.environ.get("MEMCORE_ARCHIVE_KEY")
    try:
        key = bytes.fromhex(said) if said else None
    except ValueError:
        msg = "MEMCORE_ARCHIVE_KEY: expected 64 hexadecimal digits"
        raise memcore.InvalidOptionError(msg) from None
    return memcore.open_archive(target, key=key)


@verb("archive")
@click.argument("archive", metavar="ARCHIVE")
@user_option
@app_option
@click.option("--session", metavar="SESSION", help="This session only; with --user.")
@click.option("--to", metavar="FILE", help="Write the lines to a new file, or to stdout (-).")
@click.option("--erase", is_flag=True, help="Delete all that is archived of --user.")
@dry_run_option
@yes_option
@json_option
def archived_data(
    archive: str,
    *,
    user: str | None,
    app: str | None,
    session: str | None,
    to: str | None,
    erase: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """List the sessions in an archive; or write out what it holds, or erase a user's part of it.

    ARCHIVE is a directory, or the URL of object storage: s3://bucket/prefix, gs://, az://. What is
    written out can be imported: memcore archive ARCHIVE --to - | memcore import -
    """
    if to == "-" and as_json:
        msg = "--json: with --to -, standard output has the lines themselves; name a file"
        raise memcore.InvalidOptionError(msg)
    if erase:
        if user is None or session is not None or to is not None:
            complain("--erase: name the --user, and neither --session nor --to")
            raise SystemExit(ExitCode.USAGE)
        need_choice(dry_run, yes, see="what would go", do="delete it")
        _need_directory(archive)
        count = archive_of(archive).erase(user, app=app, dry_run=dry_run)
        if as_json:
            emit_json("archive", {"objects": count, "dry_run": dry_run})
        else:
            done = "would be deleted; nothing was" if dry_run else "deleted"
            print(f"{counted(count, 'object')} {done}")
        return
    if dry_run or yes:
        complain("--dry-run and --yes go with --erase")
        raise SystemExit(ExitCode.USAGE)
    _need_directory(archive)
    found = archive_of(archive)
    if to is not None:
        lines = found.lines(user=user, app=app, session=session)
        name = to if to == "-" else checked_file("--to", to)
        written = 0
        with export_target(name, archive, "jsonl", overwrite=False) as target:
            for line in lines:
                target.write(line)
                written += 1
        if not written:
            _warn_of_nothing(archive, user, session)
        if as_json:
            emit_json("archive", {"to": to, "lines": written, "bytes": os.path.getsize(name)})
        elif to != "-":
            size = counted(os.path.getsize(name), "byte")
            warn(f"{to}: {counted(written, 'line')}, {size}")
        return
    listed = [
        each for each in found.sessions(user=user, app=app) if session in (None, each.session)
    ]
    if not listed:
        _warn_of_nothing(archive, user, session)
    _show(listed, as_json=as_json)


def _warn_of_nothing(archive: str, user: str | None, session: str | None) -> None:
    whose = "" if session is None else f" of session {session!r}"
    whose += "" if user is None else f" of user {user!r}"
    warn(f"{archive}: nothing{whose} is archived there")


def _need_directory(archive: str) -> None:
    if "://" in archive or os.path.isdir(archive):
        return
    if os.path.exists(archive):
        msg = f"{archive} is a file, not a directory; 'memcore import' reads what a sweep wrote"
        raise memcore.InvalidOptionError(msg)
    msg = f"{archive}: there is no such directory"
    raise memcore.NotFoundError(msg)


def _show(found: list[memcore.ArchivedSession], *, as_json: bool) -> None:
    if as_json:
        emit_json("archive", {"sessions": [each._asdict() for each in found]})
        return
    rows = [
        (each.session, each.user, each.app, f"{each.pieces:,}", f"{each.bytes:,}",
         timestamp(each.archived_at))
        for each in found
    ]  # fmt: skip
    print_table(("session", "user", "app", "pieces", "bytes", "archived"), rows, flexible=0)
