"""``memcore copy-compact``: copy without free pages, or with another durability."""

from __future__ import annotations

import time
from typing import Any

import click

import memcore
from memcore.cli.options import (
    dry_run_option,
    file_option,
    json_option,
    reading,
    verb,
    verify_option,
    writing,
)
from memcore.cli.output import emit_json, escape, progress
from memcore.options import counted

__all__ = [
    "copy_compact",
]


@verb("copy-compact")
@file_option
@click.option(
    "--durability",
    type=click.Choice(("full", "relaxed", "none")),
    metavar="MODE",
    help="The mode from now on: full, relaxed or none.",
)
@click.option("--allow-unsafe", is_flag=True, help="Consent to --durability none.")
@verify_option
@dry_run_option
@json_option
def copy_compact(
    store: str,
    *,
    durability: str | None,
    allow_unsafe: bool,
    verify: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replace the file with a compact, verified copy. No other process may have it open.

    --dry-run estimates its size from the pages in use; it may run beside other processes.
    """
    if dry_run:
        _estimate(store, durability=durability, as_json=as_json)
        return
    started = time.perf_counter()
    with writing(store) as db, progress("checking the copy") as report:
        done = db.copy_compact(
            durability=durability, allow_unsafe=allow_unsafe, verify=verify, progress=report
        )
    seconds = time.perf_counter() - started
    if as_json:
        fields: dict[str, Any] = {
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
        }
        fields |= {"durability": done.durability, "dry_run": False, "seconds": seconds}
        emit_json("copy-compact", fields)
        return
    print(
        escape(
            f"{store}: {counted(done.bytes_before, 'byte')} before, {done.bytes_after:,} after, "
            f"durability {done.durability}, in {seconds:.2f} s"
        )
    )


def _estimate(store: str, *, durability: str | None, as_json: bool) -> None:
    """Print how large the file is and about how large its copy would be."""
    with reading(store) as db:
        stats, mode = db.stats(), durability or db.durability
    if "pages_used" not in stats:
        msg = f"{store} has no pages of its own; its server compacts it"
        raise memcore.InvalidOptionError(msg)
    before, after = stats["file_bytes"], stats["pages_used"] * stats["page_bytes"]
    if as_json:
        fields = {"bytes_before": before, "bytes_after": after, "durability": mode}
        emit_json("copy-compact", fields | {"dry_run": True})
        return
    print(
        escape(
            f"{store}: {counted(before, 'byte')} now, about {after:,} after, durability {mode}; "
            "nothing was written"
        )
    )
