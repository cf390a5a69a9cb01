"""What the result of an operation tells of it in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Final

from memcore.model import CompactionResult

__all__ = ["MEASURES", "Figures"]


class Figures:
    """The numbers of one operation: what was noted while it ran, and what its result says.

    Defaults lie in the class: an append makes one of these, and sets a few of them.
    """

    revision: int | None = None
    items: int | None = None
    bytes: int | None = None
    tokens: int | None = None
    cut: int | None = None
    ratio: float | None = None
    durability: str | None = None
    transactions: int = 0
    """How many closures were handed to the store."""
    runs: int = 0
    """How often they were run."""

    def stored(self, prepared: Any) -> None:
        """Items are about to be stored."""
        size = tokens = 0
        for item in prepared:
            size += len(item.body) + (0 if item.payload is None else len(item.payload))
            tokens += item.tokens
        self.items, self.bytes, self.tokens = len(prepared), size, tokens


def _receipt(figures: Figures, result: Any) -> None:
    figures.revision = result.revision
    figures.items = result.appended


def _handle(figures: Figures, result: Any) -> None:
    seen = getattr(result, "seen_revision", None)
    if seen is not None:
        figures.revision = seen()


def _context(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens, figures.cut = len(result.messages), result.tokens, result.cut


def _checkpoint(figures: Figures, result: Any) -> None:
    figures.revision, figures.items = result.revision, result.items
    figures.tokens = result.tokens


def _compaction(figures: Figures, result: Any) -> None:
    if not isinstance(result, CompactionResult):
        return
    figures.revision = result.plan.revision
    if result.view is not None:
        view = result.view
        figures.items, figures.tokens = view.covered, view.tokens_after
        figures.cut = view.cut_seq + 1
        figures.ratio = view.tokens_after / view.tokens_before if view.tokens_before else None


def _recount(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = result.items, result.tokens


def _repair(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = len(result.repairs), result.tokens_after


def _imported(figures: Figures, result: Any) -> None:
    figures.items = result.items


def _file(figures: Figures, result: Any) -> None:
    figures.bytes, figures.durability = result.bytes_after, result.durability


def _count(figures: Figures, result: Any) -> None:
    if isinstance(result, Sized):
        figures.items = len(result)


def _one(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = 1, result.tokens


def _text(figures: Figures, result: Any) -> None:
    if isinstance(result, bytes | str):
        figures.bytes = len(result)


def _number(figures: Figures, result: Any) -> None:
    figures.items = result


def _counter(figures: Figures, result: Any) -> None:
    figures.revision = result


def _single(figures: Figures, _: Any) -> None:
    figures.items = 1


def _entries(figures: Figures, entries: Any) -> None:
    if isinstance(entries, Sized) and not isinstance(entries, str | bytes):
        figures.items = len(entries)


MEASURES: Final[dict[str, Callable[[Figures, Any], None]]] = {
    "handle": _handle,
    "receipt": _receipt,
    "context": _context,
    "checkpoint": _checkpoint,
    "compaction": _compaction,
    "recount": _recount,
    "repair": _repair,
    "imported": _imported,
    "file": _file,
    "count": _count,
    "one": _one,
    "text": _text,
    "number": _number,
    "counter": _counter,
    "single": _single,
    "entries": _entries,
}
