"""``memcore copy`` and ``promote``: a store into another one, and a warm copy into a store."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import click

import memcore
from memcore.cli.options import (
    ExitCode,
    dry_run_option,
    is_judged,
    json_option,
    need_apart,
    need_choice,
    need_file,
    need_new,
    verb,
    yes_option,
)
from memcore.cli.output import complain, emit_json, escape, progress
from memcore.options import counted
from memcore.store.interface import SERVER_SCHEMES
from memcore.store.transaction import is_audited

__all__ = [
    "copy_store",
    "promote_copy",
]


@verb("copy")
@click.argument("source", metavar="SOURCE", help="A file, or the address of a store.")
@click.argument("target", metavar="TARGET", help="A new file, or the address of a new store.")
@json_option
def copy_store(source: str, target: str, *, as_json: bool) -> None:
    """Copy a store into a new one: from a file to a server, from a server to a file.

    The copy is compared with the source before anybody can open it. One to a server that was cut
    short goes on when it is run again.
    """
    if ":memory:" in (source, target):
        msg = "':memory:' is gone with the program that has it; name files, or addresses of stores"
        raise memcore.InvalidOptionError(msg)
    need_file(source)
    if not target.startswith(SERVER_SCHEMES):
        need_new(target)
        need_apart(target, source)
    _need_plain(source)
    with progress("copying") as report:
        done = memcore.copy_store(source, target, progress=report)
    if as_json:
        emit_json("copy", dataclasses.asdict(done))
        return
    print(escape(f"{done.source} -> {done.target}: {counted(done.rows, 'row')}, compared"))


def _need_plain(source: str) -> None:
    """End the program if a file is encrypted or audited, which its copy could not be."""
    what = ""
    try:
        with memcore.open(source, read_only=True, verify=is_judged()) as db:
            if db.engine.store.read(lambda txn: is_audited(txn, source)):
                what = "is audited"
    except memcore.KeyNeededError:
        what = "is encrypted"
    if what:
        complain(f"{source}: {what}: 'memcore backup' copies such a file as it is")
        raise SystemExit(ExitCode.REFUSED)


@verb("promote")
@click.argument("address", metavar="ADDRESS", help="The warm copy: postgresql://HOST/NAME#SCHEMA.")
@dry_run_option
@yes_option
@json_option
def promote_copy(address: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Make the warm copy of a file a store of its own, which --store takes from then on.

    Processes that opened the file with warm= refuse writes within seconds, if they reach the
    server: stop all other writers first. This cannot be undone.
    """
    need_choice(dry_run, yes, see="what it holds", do="promote it")
    done = memcore.promote(address, dry_run=dry_run)
    if as_json:
        emit_json("promote", dataclasses.asdict(done))
        return
    what = "is a warm copy" if done.is_pending else "is a store of its own now"
    taken = datetime.fromtimestamp(done.taken_at, UTC)
    print(escape(f"{done.path}: {what}, with the file's state of {taken:%Y-%m-%d %H:%M:%S} UTC"))
