"""``memcore copy``: a whole store into a new one of either kind, a file or a server."""

from __future__ import annotations

import dataclasses

import click

import memcore
from memcore.cli.options import json_option, need_file, need_new, verb
from memcore.cli.output import emit_json, escape, progress
from memcore.store.interface import SERVER_SCHEMES

__all__ = [
    "copy_store",
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
    need_file(source)
    if not target.startswith(SERVER_SCHEMES):
        need_new(target)
    with progress("copying") as report:
        done = memcore.copy_store(source, target, progress=report)
    if as_json:
        emit_json("copy", dataclasses.asdict(done))
        return
    print(escape(f"{done.source} -> {done.target}: {done.rows:,} rows, compared"))
