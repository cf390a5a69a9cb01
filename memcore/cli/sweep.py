"""``memcore sweep``: delete data that has expired or that retention rules remove."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memcore.cli.options import AsJson, DryRun, StorePath, Yes, need_choice, reading, writing
from memcore.cli.output import emit_json, print_pairs

__all__ = [
    "show_report",
    "sweep_store",
]


def sweep_store(
    store: StorePath,
    *,
    archive: Annotated[
        str | None, typer.Option(metavar="FILE", help="Add what leaves to this export first.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Remove at most so many things.")] = 100_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete data that has expired or that retention rules remove."""
    need_choice(dry_run, yes, see="what would go", do="remove it")
    with reading(store) if dry_run else writing(store) as db:
        report = db.sweep(limit=limit, archive=archive, dry_run=dry_run)
    show_report(report.mapping(), verb="sweep", as_json=as_json)


def show_report(found: dict[str, Any], *, verb: str, as_json: bool) -> None:
    """Print the report of a sweep."""
    if as_json:
        emit_json(verb, {"report": found})
        return
    told = {"dry_run", "complete", "total"}
    print_pairs(
        (name.replace("_", " "), count) for name, count in found.items() if name not in told
    )
    what = "would go; nothing was written" if found["dry_run"] else "went"
    rest = "" if found["complete"] else "; more is due: run it again"
    print(f"\n{found['total']:,} things {what}{rest}")
