"""``memcore backup``: a verified copy of a database in use."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from memcore.cli.options import AsJson, ExitCode, StorePath, VerifyCopy, reading
from memcore.cli.output import complain, emit_json, escape, progress

__all__ = [
    "back_up",
]


def back_up(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The file to make.")],
    store: StorePath,
    *,
    compact: Annotated[
        bool, typer.Option("--compact/--as-is", help="Leave free pages out, or copy all pages.")
    ] = True,
    verify: VerifyCopy = True,
    as_json: AsJson = False,
) -> None:
    """Copy the database to a new file and verify the copy.

    Readers and writers can continue meanwhile.
    """
    started = time.perf_counter()
    with reading(store) as db:
        if os.path.lexists(target):
            complain(f"{target}: exists; a backup never overwrites")
            raise typer.Exit(ExitCode.REFUSED)
        with progress("checking the copy") as report:
            db.backup(target, compact=compact, verify=verify, progress=report)
    size = os.path.getsize(target)
    seconds = time.perf_counter() - started
    if as_json:
        fields = {"target": target, "bytes": size, "verified": verify, "seconds": seconds}
        emit_json("backup", fields)
    else:
        print(escape(f"{target}: {size:,} bytes in {seconds:.2f} s"))
