"""``memcore salvage``: build a sound file from the verifiable rows of a damaged one."""

from __future__ import annotations

import dataclasses

import click

import memcore
from memcore.cli.options import ExitCode, json_option, key_options, need_directory, need_new, verb
from memcore.cli.output import emit_json, escape, stages
from memcore.options import counted

__all__ = [
    "salvage_file",
]


_SEQS_SHOWN = 8


@verb("salvage")
@click.argument("damaged", metavar="DAMAGED", help="The file; it stays as it is.")
@click.option("--to", required=True, metavar="NEW", help="The file to make.")
@json_option
def salvage_file(damaged: str, *, to: str, as_json: bool) -> None:
    """Copy all verifiable data of a damaged file to a new one, and report what was lost.

    The exit code is 1 if anything was lost or is uncertain.
    """
    need_directory(damaged)
    need_new(to)
    with stages() as report:
        found = memcore.salvage(damaged, to, progress=report, **key_options())
    if as_json:
        emit_json("salvage", dataclasses.asdict(found) | {"share": found.share})
    else:
        _print(found)
    complete = found.pages_unread == 0 and not found.blobs_lost
    if found.damaged or found.lost or found.unsure or not complete:
        raise SystemExit(ExitCode.FINDINGS)


def _print(found: memcore.SalvageReport) -> None:
    for session in found.damaged:
        where = f"session {session.session_id!r} of user {session.user!r} in app {session.app!r}"
        if session.lost:
            shown = ", ".join(map(str, session.lost[:_SEQS_SHOWN]))
            more = ", ..." if len(session.lost) > _SEQS_SHOWN else ""
            print(escape(f"{where}: {counted(len(session.lost), 'item')} lost: {shown}{more}"))
        for note in session.notes:
            print(escape(f"{where}: {note}"))
    for line in found.lost:
        print(escape(f"lost: {line}"))
    for line in found.unsure:
        print(escape(f"not sure: {line}"))
    print(
        escape(
            f"{found.path}: {counted(found.sessions, 'session')}, {counted(found.items, 'item')}"
            f" ({found.items_lost:,} lost), {counted(found.entries, 'entry', 'entries')},"
            f" {counted(found.blobs, 'blob')} ({found.blobs_lost:,} lost)"
        )
    )
    if found.pages_unread is None:
        print("the list of free pages is lost: it is not known what else there was")
    elif found.pages_unread:
        print(f"{counted(found.pages_unread, 'page')} in use could not be read in full")
