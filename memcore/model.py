"""The values that memcore hands out: immutable, without behaviour beyond themselves.

Those made for every item read or appended are named tuples, which are made three times as fast as
frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "CallRecord",
    "CompactionResult",
    "Context",
    "Item",
    "ItemKind",
    "Message",
    "OpenCall",
    "Plan",
    "Receipt",
    "Repair",
    "SessionEntry",
    "Summarize",
    "SummaryRequest",
    "View",
    "Violation",
]

Message: TypeAlias = dict[str, Any]
"""One item in the wire format of its runtime: a JSON object."""


class ItemKind(IntEnum):
    """What sort of item a wire object is. The numbers are stored and never change."""

    OPAQUE = 0
    SYSTEM = 1
    USER = 2
    ASSISTANT = 3
    CALL = 4
    RESULT = 5
    REASONING = 6
    EVENT = 7


class Item(NamedTuple):
    """One entry of a session's log.

    ``message`` is the wire object exactly as it was appended. For an event it is
    ``{"type": ..., "payload": ...}``.
    """

    seq: int
    kind: ItemKind
    message: Message
    tokens: int
    created_at: float
    """Seconds since the epoch by the writer's clock; order is ``seq``, never the time."""
    meta: Mapping[str, Any] | None = None
    request_id: str | None = None


class Receipt(NamedTuple):
    """What a committed change returns."""

    seq: int
    """The last item that the change appended (the last live item if it appended none)."""
    revision: int
    tokens: int
    """Tokens of the whole live history after the change."""
    open_calls: int
    """How many calls are unanswered after the change."""
    appended: int = 1
    """How many items the change appended; their seqs end at ``seq`` without a gap."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that waits for its result."""

    call_id: str
    """The call's id; the function's name for a call without an id."""
    name: str | None
    seq: int


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Where a tool call was made and answered."""

    call_id: str
    seq: int
    result_seqs: tuple[int, ...]
    open: bool


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule in a message list: where, which id, which rule, and in words."""

    position: int
    call_id: str | None
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Repair:
    """One change that rendering made so that the provider accepts the context."""

    action: str
    """``hoisted``, ``synthesized``, ``orphan``, ``superseded``, ``reasoning``, ``merged``,
    ``renamed`` or ``lead_in``."""
    seq: int | None
    """The item it concerns (its position in a plain list)."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What is handed to the model: pins, summary, and the items from a safe cut on."""

    messages: list[Message]
    tokens: int
    """Tokens of ``messages`` as counted by the session's counter."""
    cut: int
    """The first seq after the cut (a plain list: the first position); everything before it that
    is neither pinned nor summarized is left out."""
    omitted: int
    """How many items before the cut are not shown as they are."""
    summary: str | None = None
    repairs: tuple[Repair, ...] = ()
    open_calls: int = 0


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a summarizer is given."""

    messages: Sequence[Message]
    """The items to fold, oldest first, without those that an earlier summary covers."""
    previous_summary: str | None = None
    session_id: str | None = None


Summarize: TypeAlias = Callable[[SummaryRequest], str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The pure result of choosing what to compact; applied in one commit."""

    revision: int
    """The plan is applied only to a history that still begins with what it folds."""
    cut: int
    """Position of the first item that stays."""
    cut_seq: int
    fold_from: int
    """Position of the first item that this plan folds (pins and earlier folds lie before it)."""
    pinned: tuple[int, ...] = ()
    """Seqs before the cut that stay visible (beside the leading system items)."""
    tokens_before: int = 0
    tokens_kept: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to fold."""
        return self.cut <= self.fold_from


@dataclass(frozen=True, slots=True)
class View:
    """A compaction record: it represents the items before its cut; the log keeps them."""

    number: int
    parent: int
    """Number of the view before it, 0 for the first."""
    cut_seq: int
    """The last seq that the view covers."""
    covered: int
    """How many items of the live history it covers."""
    summary: str | None
    pinned: tuple[int, ...]
    status: str
    """``summarized``, ``trimmed``, ``fallback_slice`` or ``fallback_last``."""
    tokens_before: int
    tokens_after: int
    created_at: float


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What ``Session.compact`` did."""

    status: str
    """``summarized``, ``trimmed``, ``fallback_slice``, ``fallback_last`` or ``nothing``."""
    plan: Plan
    view: View | None = None
    error: BaseException | None = field(default=None, compare=False)
    """Why the summarizer failed, when a fallback served."""


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One row of a listing of sessions."""

    session_id: str
    app: str
    user: str
    items: int
    tokens: int
    open_calls: int
    revision: int
    policy: str
    created_at: float
    updated_at: float
