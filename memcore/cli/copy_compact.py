"""``memcore copy-compact``: copy without free pages, or with another durability."""

from __future__ import annotations

import time

import click

from memcore.cli.options import file_option, json_option, verb, verify_option, writing
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
@json_option
def copy_compact(
    store: str, *, durability: str | None, allow_unsafe: bool, verify: bool, as_json: bool
) -> None:
    """Replace the file with a compact, verified copy. No other process may have it open."""
    started = time.perf_counter()
    with writing(store) as db, progress("checking the copy") as report:
        done = db.copy_compact(
            durability=durability, allow_unsafe=allow_unsafe, verify=verify, progress=report
        )
    seconds = time.perf_counter() - started
    if as_json:
        fields = {"bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
        emit_json("copy-compact", fields | {"durability": done.durability, "seconds": seconds})
        return
    print(
        escape(
            f"{store}: {counted(done.bytes_before, 'byte')} before, {done.bytes_after:,} after, "
            f"durability {done.durability}, in {seconds:.2f} s"
        )
    )
