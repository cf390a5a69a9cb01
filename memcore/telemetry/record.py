"""Records of operations, their sinks, and measures of results. Never content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, Final, NamedTuple

from memcore.errors import InvalidOptionError
from memcore.model import CompactionResult

__all__ = [
    "MEASURES",
    "NAMES",
    "OK",
    "Figures",
    "Record",
    "Sink",
    "Tell",
    "checked_names",
]


# --- Records of operations and their sinks. Never content -----------------------------------------

OK: Final = "ok"
NAMES: Final = ("clear", "hashed", "none")
"""Naming of users, actors and sessions in a sink: clear, as pseudonyms, or left out."""


class Record(NamedTuple):
    """One operation on the public surface. No content, no keys of content, no texts of errors."""

    operation: str
    """As the table of docs/telemetry.md names it: ``append``, ``context``, ``kv.put``, ..."""
    status: str
    """``"ok"``, or the type of the error that it ended with."""
    duration_seconds: float
    """Time that the caller waited; of an iterator, the time within it."""
    started_at: float
    """Start: seconds since 1970."""
    app: str | None = None
    user: str | None = None
    session: str | None = None
    """The session, or the thread of a graph."""
    actor: str | None = None
    """Actor of the handle, if it is bound to one."""
    request_id: str | None = None
    adapter: str | None = None
    """The adapter that was called, None for memcore's own surface."""
    revision: int | None = None
    """The session's, as this process knew it last; of a state, its counter."""
    items: int | None = None
    """Number of items (entries, sessions, ...) stored, returned or removed."""
    bytes: int | None = None
    """Encoded bytes of what was stored or handed out."""
    tokens: int | None = None
    """Of what was stored or is shown."""
    cut: int | None = None
    """The first seq behind the cut of a context."""
    ratio: float | None = None
    """Tokens after a compaction by those before it."""
    retries: int = 0
    """Number of times that transactions of the operation were run again."""
    backend: str = "lmdb"
    durability: str = "full"

    @property
    def is_error(self) -> bool:
        """True if the operation did not succeed."""
        return self.status != OK

    def figures(self) -> dict[str, Any]:
        """Every field that has a value, by its name."""
        return {
            name: value for name, value in zip(self._fields, self, strict=True) if value is not None
        }


Tell = Callable[[Record], object]


class Sink:
    """Receiver of operation records. Derive from it, or pass any callable that takes a ``Record``.

    A sink is called where the operation ran, after it: in the caller's thread or loop. What it
    raises is counted and logged once, and breaks nothing. Threads may call it at once.
    """

    names: str = "clear"
    """One of ``NAMES``: users, actors and sessions as they are, as pseudonyms, or left out."""
    enters: frozenset[str] = frozenset()
    """The operations that ``enter`` is to be called before."""

    def tell(self, record: Record) -> None:
        """Take one record."""
        raise NotImplementedError

    def enter(self, operation: str) -> Any:
        """Begin an operation of ``enters``; the result is passed to ``leave``."""
        raise NotImplementedError

    def leave(self, entered: Any, record: Record) -> None:
        """End an operation of ``enters``; ``entered`` is None if ``enter`` was not called."""
        raise NotImplementedError

    def redacted(self, found: Mapping[str, int], backend: str) -> None:
        """Take the number of values of each class redacted in a database of this backend."""

    def attach(self, store: Any) -> None:
        """Attach to an opened database: ``store.stats()`` returns its sizes while it is open."""

    def flush(self) -> None:
        """Hand on what was kept back: a database is being closed."""


def checked_names(names: object) -> str:
    """``names`` if it is one of ``NAMES``.

    Raises:
        InvalidOptionError: it is not.
    """
    if names not in NAMES:
        known = ", ".join(map(repr, NAMES))
        msg = f"names: expected one of {known}, got {names!r:.80}"
        raise InvalidOptionError(msg)
    return str(names)


# --- Measures: figures taken from the result of an operation --------------------------------------


class Figures:
    """Counters of one operation: noted while it ran, and taken from its result.

    Defaults are class attributes: an append makes one of these and sets a few of them.
    """

    revision: int | None = None
    items: int | None = None
    bytes: int | None = None
    tokens: int | None = None
    cut: int | None = None
    ratio: float | None = None
    durability: str | None = None
    transactions: int = 0
    """Closures handed to the store."""
    runs: int = 0
    """Runs of those closures."""

    change: Any = None
    """The one whose items were counted last."""

    def stored(self, prepared: Any) -> None:
        """Count items that are about to be stored."""
        size, tokens = self.bytes or 0, self.tokens or 0
        for item in prepared:
            size += len(item.body) + (0 if item.payload is None else len(item.payload))
            tokens += item.tokens
        self.items = (self.items or 0) + len(prepared)
        self.bytes, self.tokens = size, tokens


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
