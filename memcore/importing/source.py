"""Records that every reader of a foreign store yields, and the notes that it takes on the way.

A reader turns one file, directory or database into records, one conversation at a time; it never
writes to its source. Items are in the order of the source, each after the one that it follows, so
a conversation may be a tree: the path to ``leaf`` is its live history, other leaves are branches.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from memcore.codec.values import check_json
from memcore.errors import SourceError
from memcore.exchange.lines import CREATED_US_END
from memcore.records import record

__all__ = [
    "ItemTree",
    "Notes",
    "Owner",
    "Record",
    "SourceBranch",
    "SourceConversation",
    "SourceFailure",
    "SourceItem",
    "SourceMemory",
    "SourceState",
    "SourceSummary",
    "SourceThread",
    "SourceWrites",
    "branch_name",
    "checked_message",
    "checked_meta",
    "fault_of_text",
    "json_of",
    "micros_of",
    "name_of_file",
    "refuse_source",
    "reported",
]

_TEXT: Final = "__memcore_json__"
"""Key under which JSON that is no object is kept as text, as sessions of OpenAI's SDK do."""
_SECONDS_MAX: Final = 100_000_000_000
"""Numbers from here on are milliseconds: as seconds they would be in the year 5138."""
_SHOWN: Final = 60
_BRANCH_CHARS: Final = 80


class Owner(NamedTuple):
    """Application and user that own what has none in the source, and the types that may be built.

    A type is its module and name; safe ones, such as messages, are always built.
    """

    app: str
    user: str
    types: tuple[tuple[str, str], ...] = ()


class SourceItem(NamedTuple):
    """One item of a conversation."""

    message: Any
    """A message of the conversation's wire format; the payload of an event."""
    created_us: int | None
    """Microseconds since 1970; None: that of the item before."""
    meta: dict[str, Any] | None = None
    event: str = ""
    """Type of an event, which no context shows."""
    after: int | None = None
    """Index of the item that it follows; None: the one before it in the list; -1: none."""
    author: str | None = None
    request_id: str | None = None


class SourceBranch(NamedTuple):
    """A path through the items that is not the live one; it becomes a fork."""

    name: str
    """Its name within the conversation."""
    leaf: int
    """Index of its last item; -1: it has none."""
    fork: Callable[[str], str] | None = None
    """Returns the fork's name from that of the conversation's session; None: ``SESSION/NAME``."""
    settle: Callable[[Any, str], None] | None = None
    """Called with the scope and the session's name once the fork is stored."""


class SourceSummary(NamedTuple):
    """A compaction: a text that stood for the items up to one of them."""

    last: int
    """Index of the last item that it covers."""
    text: str


class SourceState(NamedTuple):
    """Fields that the sessions of a user, or of an application, share."""

    place: str
    app: str
    user: str | None
    values: dict[str, Any]


class SourceFailure(NamedTuple):
    """A part of the source that could not be read."""

    place: str
    reason: str


class SourceMemory(NamedTuple):
    """A statement about a user."""

    place: str
    app: str
    user: str
    text: str
    key: str
    """Its id in the source."""
    attributes: dict[str, Any]
    labels: dict[str, str]
    created: float | None
    """Seconds since 1970."""


class SourceWrites(NamedTuple):
    """Pending writes of one task: its id and path; index, channel and value of each."""

    task: str
    path: str
    writes: list[tuple[int, str, Any]]


class SourceThread(NamedTuple):
    """A checkpoint of a graph's thread, with its pending writes.

    ``body`` None: the source has writes for a checkpoint that it does not hold.
    """

    place: str
    thread: str
    namespace: str
    checkpoint: str
    parent: str | None
    body: dict[str, Any] | None
    metadata: dict[str, Any]
    writes: list[SourceWrites]


@record(slots=True)
class SourceConversation:
    """One conversation."""

    place: str
    """Beginning of it in the source, for messages."""
    name: str
    policy: str
    items: list[SourceItem]
    app: str | None = None
    """None: what the caller of the import says."""
    user: str | None = None
    leaf: int | None = None
    """Index of the last live item; None: the last item; -1: none is live."""
    branches: list[SourceBranch] = field(default_factory=list)
    summaries: list[SourceSummary] = field(default_factory=list)
    state: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Values set while the item of an index was appended, in order; -1: before all items."""
    created_us: int | None = None
    updated_us: int | None = None


Record: TypeAlias = SourceConversation | SourceState | SourceMemory | SourceThread | SourceFailure


@record(slots=True)
class Notes:
    """Counts of parts that readers mended or left out, by reason."""

    mended: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    _first: dict[str, str] = field(default_factory=dict)

    def mend(self, what: str, count: int = 1) -> None:
        """Count what is stored in another form than the source has."""
        self.mended[what] += count

    def skip(self, what: str, count: int = 1, *, place: str = "") -> None:
        """Count what is not stored; the first place is remembered."""
        if count:
            self.skipped[what] += count
            self._first.setdefault(what, place)

    def all_skipped(self) -> dict[str, int]:
        """Return the counts of what is not stored, each with its first place if that is known."""
        return {
            f"{what} (first: {self._first[what]})" if self._first[what] else what: count
            for what, count in sorted(self.skipped.items())
        }


def refuse_source(place: str, text: str, cause: BaseException | None = None) -> NoReturn:
    """Raise SourceError for a place of the source."""
    raise SourceError(f"{place}: {text}", place=place) from cause


def reported(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records; an error after the first one ends them as a failure.

    Raises:
        SourceError: nothing of the source can be read.
    """
    found = False
    try:
        for record in records:
            found = True
            yield record
    except SourceError as error:
        if not found:
            raise
        yield SourceFailure(error.place, str(error).removeprefix(f"{error.place}: "))


# --- Values of a source: JSON, messages, times ----------------------------------------------------


def json_of(text: Any, place: str) -> Any:
    """Parse JSON of a row or a line.

    Raises:
        SourceError: it is none, or is nested too deeply.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        shown = repr(text)[:_SHOWN] if isinstance(text, str) else type(text).__name__
        refuse_source(place, f"expected JSON, got {shown} ({str(exc)[:_SHOWN]})", exc)


def checked_message(found: Any, notes: Notes) -> dict[str, Any]:
    """Return a message that memcore can store; anything else is kept as JSON text in an object."""
    if isinstance(found, dict):
        try:
            check_json(found)
        except (ValueError, RecursionError):
            notes.mend("values that are no JSON, kept as text")
        else:
            return found
    else:
        notes.mend("items that are no object, kept as text")
    labels = {
        key: found[key]
        for key in ("type", "role", "call_id", "id")
        if isinstance(found, Mapping) and isinstance(found.get(key), str)
    }
    try:
        return {**labels, _TEXT: json.dumps(found, default=repr)}
    except RecursionError:
        return {**labels, _TEXT: "null"}


def checked_meta(meta: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return ids and details that memcore can store; what is no JSON is kept as text."""
    try:
        check_json(meta)
    except (ValueError, RecursionError):
        notes.mend("ids and details that are no JSON, kept as text")
        return {name: checked_message(value, Notes()) for name, value in meta.items()}
    return meta


def fault_of_text(found: Any, what: str) -> str:
    """Return what is wrong with a text that rows are looked up by; empty: nothing is."""
    if not isinstance(found, str):
        return f"{what}: expected text, got {type(found).__name__}"
    try:
        found.encode()
    except UnicodeEncodeError:
        return f"{what} is no UTF-8"
    return ""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"(\.\d{1,6})\d*")


@lru_cache(256)
def _micros_in(text: str) -> int:
    """Parse a time; neighbouring rows often have the same one.

    Raises:
        ValueError: it is none.
    """
    moment = datetime.fromisoformat(_FRACTION.sub(r"\1", text.strip().replace("Z", "+00:00")))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def micros_of(found: Any) -> int | None:
    """Return a time as microseconds since 1970, without a zone as UTC; None if it is none."""
    try:
        if isinstance(found, str):
            micros = _micros_in(found)
        elif isinstance(found, int | float) and not isinstance(found, bool):
            seconds = found / 1000 if abs(found) >= _SECONDS_MAX else found
            micros = round(seconds * 1_000_000)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return micros if 0 <= micros < CREATED_US_END else None


# --- A conversation as a tree: items by parent, paths, forks --------------------------------------


class ItemTree:
    """Items of a conversation that follow each other in more than one way."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.items: list[SourceItem] = []
        self._children: dict[int, list[int]] = defaultdict(list)

    def add(self, item: SourceItem, after: int) -> int:
        """Add an item behind another one (-1: none); return its index."""
        at = len(self.items)
        self.items.append(item._replace(after=after))
        self._children[after].append(at)
        return at

    def leaves(self) -> list[int]:
        """Return the items that nothing follows, in order."""
        return [at for at in range(len(self.items)) if at not in self._children]

    def followers(self, at: int) -> list[int]:
        """Return the items directly behind an item."""
        return self._children.get(at, [])

    def path(self, leaf: int) -> list[int]:
        """Return the indexes from the first item to a leaf."""
        found = []
        while leaf >= 0:
            found.append(leaf)
            after = self.items[leaf].after
            leaf = leaf - 1 if after is None else after
        return found[::-1]


def branch_name(end: str, at: int) -> str:
    """Return the name of a branch: after its last line, with its index if that is long."""
    return f"branch-{end if len(end) <= _BRANCH_CHARS else f'{end[:_BRANCH_CHARS]}-{at}'}"


def name_of_file(path: str) -> str:
    """Return the name of a file without its ending, and without that of its compression."""
    name = os.path.basename(path).removesuffix(".zst")
    return os.path.splitext(name)[0] or "file"
