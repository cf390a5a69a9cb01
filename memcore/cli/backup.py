"""``memcore backup``: a verified copy of a database in use."""

from __future__ import annotations

import os
import time

import click

from memcore.cli.options import (
    ExitCode,
    file_option,
    json_option,
    need_apart,
    need_directory,
    reading,
    verb,
    verify_option,
)
from memcore.cli.output import complain, emit_json, escape, progress
from memcore.options import counted

__all__ = [
    "back_up",
]


@verb("backup")
@click.argument("target", metavar="TARGET", help="The file to make.")
@file_option
@click.option("--compact/--as-is", default=True, help="Leave free pages out, or copy all pages.")
@verify_option
@json_option
def back_up(target: str, store: str, *, compact: bool, verify: bool, as_json: bool) -> None:
    """Copy the database to a new file and verify the copy.

    Readers and writers can continue meanwhile.
    """
    started = time.perf_counter()
    with reading(store) as db:
        need_directory(target)
        if os.path.lexists(target):
            complain(f"{target} exists; a backup never overwrites")
            raise SystemExit(ExitCode.REFUSED)
        need_apart(target, store)
        with progress("checking the copy") as report:
            db.backup(target, compact=compact, verify=verify, progress=report)
    size = os.path.getsize(target)
    seconds = time.perf_counter() - started
    if as_json:
        fields = {"target": target, "bytes": size, "verified": verify, "seconds": seconds}
        emit_json("backup", fields)
    else:
        print(escape(f"{target}: {counted(size, 'byte')} in {seconds:.2f} s"))
