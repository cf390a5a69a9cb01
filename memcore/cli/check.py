"""``memcore check``: is the file sound?"""

from __future__ import annotations

import typer

from memcore.cli.exits import ExitCode
from memcore.cli.options import AsJson, StorePath, reading
from memcore.cli.output import emit_json, escape, progress

__all__ = ["check_store"]


def check_store(store: StorePath, *, as_json: AsJson = False) -> None:
    """Walk the whole file: structure, checksums, index, chains, references.

    Findings are listed on stdout, and the exit code is 1.
    """
    with reading(store) as db:
        with progress("checking") as report:
            findings = db.check(progress=report)
        entries = list(db.sessions())
    items = sum(entry.items for entry in entries)
    if as_json:
        fields = {"ok": not findings, "findings": findings, "sessions": len(entries)}
        emit_json("check", fields | {"items": items})
    else:
        for finding in findings:
            print(escape(finding))
        verdict = f"{len(findings):,} findings" if findings else "ok"
        print(f"{verdict}: {len(entries):,} sessions, {items:,} items")
    if findings:
        raise typer.Exit(ExitCode.FINDINGS)
