"""``memcore stats``: sizes and counters."""

from __future__ import annotations

from memcore.cli.options import AsJson, StorePath, reading
from memcore.cli.output import emit_json, print_pairs

__all__ = ["show_stats"]


def show_stats(store: StorePath, *, as_json: AsJson = False) -> None:
    """Show sizes and counters of the file."""
    with reading(store) as db:
        found = db.stats()
    if as_json:
        emit_json("stats", {"stats": found})
        return
    print_pairs((name.replace("_", " "), value) for name, value in found.items())
