"""Public value types: immutable, without behaviour of their own.

Types created for every item read or appended are named tuples, which are created three times as
fast as records.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from memcore._fast import classify
from memcore.errors import InvalidOptionError
from memcore.limits import ENVELOPE_TEXT_CHARS_MAX, USAGE_TOKENS_MAX
from memcore.options import counted
from memcore.records import record

__all__ = [
    "FAILED",
    "RESULT_TYPES",
    "TYPES",
    "VIEW_STATUSES",
    "Calibration",
    "CallRecord",
    "Checkpoint",
    "CompactionResult",
    "Context",
    "Conversion",
    "Envelope",
    "Grant",
    "Item",
    "ItemKind",
    "Mask",
    "Memory",
    "MemoryHit",
    "Message",
    "OpenCall",
    "Plan",
    "Playbook",
    "PlaybookPatch",
    "RecalledMemory",
    "Receipt",
    "RecountResult",
    "Repair",
    "RepairResult",
    "SearchHit",
    "SessionEntry",
    "Source",
    "Summarize",
    "Summarizer",
    "SummaryRequest",
    "TermScore",
    "View",
    "Violation",
    "checked_envelope",
    "derived_type",
    "stored_envelope",
]


# --- Envelope: metadata that a runtime attaches to an item ----------------------------------------
# Stored in the item's row, only if given; never part of what a model receives.

TYPES: Final = (
    "user_input",
    "planner",
    "tool_call",
    "tool_result",
    "reflection",
    "aggregate",
    "final",
    "summary",
    "error",
    "hitl",
    "system",
    "reasoning",
    "other",
)
"""The built-in types; custom ones begin with ``x-``."""
OWN: Final = "x-"
RESULT_TYPES: Final = frozenset(("aggregate", "final"))
"""Types of items that an agent shares when it shares only its results."""
FAILED: Final = frozenset(("error", "failed", "timeout"))
"""Statuses that denote a failure."""

_OF_KIND: Final = (
    "other",
    "system",
    "user_input",
    "final",
    "tool_call",
    "tool_result",
    "reasoning",
    "other",
)
"""Default types, indexed by ItemKind: an assistant message without calls is the final answer."""
_ASSISTANT: Final = 3
_TEXTS: Final = ("type", "request_id", "model", "tool", "status", "author", "agent", "owner")


@record(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Metadata of one item. Every field is optional.

    Raises:
        InvalidOptionError: a field is of a wrong type or out of range, or the type is unknown.
    """

    type: str | None = None
    """One of ``TYPES``, or a custom one that begins with ``x-``; None: derived from the item."""
    request_id: str | None = None
    """Id of the request that the item belongs to; equal to the item's ``request_id``."""
    model: str | None = None
    tool: str | None = None
    """Name of the tool that is called or answers."""
    duration_ms: float | None = None
    """Time that producing the item took, in milliseconds."""
    status: str | None = None
    """``ok`` or any other text; ``error``, ``failed`` and ``timeout`` denote failures."""
    redacted: bool | None = None
    """True if personal data was removed before it was stored."""
    tokens: int | None = None
    """Tokens as billed by the provider; ``Item.tokens`` are those of the session's counter."""
    author: str | None = None
    """Author: the name of an agent, or ``user``."""
    agent: str | None = None
    """Agent whose run wrote the item, if the author is a tool or not set."""
    owner: str | None = None
    """Owner of the data."""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        if self.type is not None and self.type not in TYPES and not _is_own(self.type):
            msg = (
                f"type: expected one of {', '.join(TYPES)}, or one of your own that begins with "
                f"{OWN!r}; got {self.type!r:.80}"
            )
            raise InvalidOptionError(msg)
        if self.redacted is not None and not isinstance(self.redacted, bool):
            msg = f"redacted: expected a bool or None, got {type(self.redacted).__name__}"
            raise InvalidOptionError(msg)
        _check_duration(self.duration_ms)
        _check_tokens(self.tokens)

    @property
    def by(self) -> str | None:
        """Attribution among several agents: the author, else the agent."""
        return self.author if self.author is not None else self.agent

    @property
    def is_failure(self) -> bool:
        """True if the status denotes a failure."""
        return self.status in FAILED

    def mapping(self) -> dict[str, Any]:
        """Return the fields that are set, in declaration order."""
        values = zip(FIELDS, _values(self), strict=True)
        return {name: value for name, value in values if value is not None}


FIELDS: Final = tuple(Envelope.__annotations__)
_KNOWN: Final = frozenset(FIELDS)
_values: Final = attrgetter(*FIELDS)
_NOTHING: Final = (None,) * len(FIELDS)
_PLAIN: Final = {
    **dict.fromkeys(_TEXTS, str), "redacted": bool, "tokens": int, "duration_ms": float
}  # fmt: skip
"""Exact types of stored fields; a row that has them skips full validation."""
_PUT_REQUEST: Final = vars(Envelope)["request_id"].__set__
_SET: Final = [(name, _PLAIN[name], getattr(Envelope, name).__set__) for name in FIELDS]


def checked_envelope(given: object) -> Envelope | None:
    """Convert an argument to an Envelope; None for an absent or empty one.

    Raises:
        InvalidOptionError: it is neither an Envelope nor a mapping of its fields.
    """
    if given is None:
        return None
    if isinstance(given, Envelope):
        return None if _values(given) == _NOTHING else given
    if not isinstance(given, Mapping):
        msg = f"envelope: expected an Envelope, a mapping or None, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    unknown = [name for name in given if name not in _KNOWN]
    if unknown:
        named = ", ".join(f"{name!r:.40}" for name in unknown[:5])
        msg = f"envelope: {named} is no field of it; expected {', '.join(FIELDS)}"
        raise InvalidOptionError(msg)
    found = Envelope(**given)
    return None if _values(found) == _NOTHING else found


def stored_envelope(found: Mapping[str, Any], request_id: str | None) -> Envelope:
    """Build the envelope of a row, ignoring fields that a later version added.

    Raises:
        InvalidOptionError: it is not an object, or a field is invalid.
    """
    if not isinstance(found, Mapping):
        msg = f"envelope: expected an object, got {type(found).__name__}"
        raise InvalidOptionError(msg)
    told = object.__new__(Envelope)
    for name, plain, put in _SET:
        value = found.get(name)
        if value is not None and type(value) is not plain:
            break
        put(told, value)
    else:
        if (told.tokens or 0) >= 0:
            _PUT_REQUEST(told, request_id)
            return told
    known = {name: value for name, value in found.items() if name in _KNOWN}
    return Envelope(**{**known, "request_id": request_id})


def derived_type(kind: int, message: Mapping[str, Any]) -> str:
    """Derive the type of an item without one: an event's own, else from kind and message."""
    if kind == len(_OF_KIND) - 1:
        found = message.get("type")
        return found if isinstance(found, str) else "other"
    if kind == _ASSISTANT and classify(dict(message))[1]:
        return "tool_call"
    return _OF_KIND[kind]


def _is_own(name: str) -> bool:
    return name.startswith(OWN) and len(name) > len(OWN)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"{name}: expected a str or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if name != "request_id" and not 0 < len(value) <= ENVELOPE_TEXT_CHARS_MAX:
        msg = f"{name}: expected 1 to {ENVELOPE_TEXT_CHARS_MAX} characters, got {len(value)}"
        raise InvalidOptionError(msg)


def _check_duration(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"duration_ms: expected milliseconds or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if not 0 <= value <= USAGE_TOKENS_MAX or not math.isfinite(value):
        msg = "duration_ms: expected a finite number of 0 to 2**48 milliseconds"
        raise InvalidOptionError(msg)


def _check_tokens(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"tokens: expected an int or None, got {type(value).__name__}"
        raise InvalidOptionError(msg)
    if not 0 <= value <= USAGE_TOKENS_MAX:
        msg = "tokens: expected 0 to 2**48"
        raise InvalidOptionError(msg)


# --- Public value types ---------------------------------------------------------------------------

Message: TypeAlias = dict[str, Any]
"""One item in the wire format of its runtime: a JSON object."""


class ItemKind(IntEnum):
    """Kind of a wire object. The numbers are stored and never change."""

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
    """Seconds since the epoch by the writer's clock; order is given by ``seq``, never by time."""
    meta: Mapping[str, Any] | None = None
    request_id: str | None = None
    envelope: Envelope | None = None

    @property
    def type(self) -> str:
        """Type from its envelope, else an event's own type, else derived from kind and message."""
        told = None if self.envelope is None else self.envelope.type
        return derived_type(self.kind, self.message) if told is None else told


class TermScore(NamedTuple):
    """A term's part of the score of a hit."""

    term: str
    """The stem that was searched for, or a pair of characters."""
    times: int
    """Occurrences in the item; 255 stands for more."""
    items: int
    """Number of indexed items that have it."""
    score: float


@record(frozen=True, slots=True)
class SearchHit:
    """An item that a search found."""

    session_id: str
    """A session in whose live history the item is: its own, or a fork that shares it."""
    seq: int
    score: float
    """Relevance; comparable within one result only."""
    item: Item
    """The item; its tokens are those counted when it was appended."""
    snippet: str
    """Extract of the item's text, about 200 characters with the most matching words."""
    highlights: tuple[tuple[int, int], ...]
    """``(start, stop)`` of the matching words in the snippet."""
    app: str
    user: str
    why: tuple[TermScore, ...] = ()
    """With ``explain``: the terms of the query that the item has."""
    neighbours: float = 0.0
    """With ``explain``: the part of the score that the items before and after it lent."""
    similarity: float = 0.0
    """With ``explain``: cosine similarity of the item's vector to the query's; 0 without one."""


class Receipt(NamedTuple):
    """Result of a committed change.

    ``AppendingTxn._receipt`` in ``_session.pxi`` builds it, with every field;
    ``log/idempotency.py`` stores it under a request's key.
    """

    seq: int
    """The last item that the change appended (the last live item if it appended none)."""
    revision: int
    tokens: int
    """Tokens of the whole live history after the change."""
    open_calls: int
    """Number of unanswered calls after the change."""
    appended: int = 1
    """Number of items that the change appended; their seqs are contiguous and end at ``seq``."""


@record(frozen=True, slots=True)
class OpenCall:
    """A tool call that awaits its result."""

    call_id: str
    """Id of the call; the function's name for a call without an id."""
    name: str | None
    seq: int


@record(frozen=True, slots=True)
class CallRecord:
    """Location of a tool call and its results."""

    call_id: str
    seq: int
    result_seqs: tuple[int, ...]
    open: bool


@record(frozen=True, slots=True)
class Checkpoint:
    """A saved position of a session: its live history and view at one moment. Never changes.

    ``Session.rewind`` and ``Session.fork`` accept it, even if its items are no longer live.
    """

    number: int
    """Sequence number among the session's checkpoints; never reused."""
    name: str | None
    """Need not be unique: a name refers to the newest checkpoint that has it."""
    seq: int
    """The last live item at that moment, 0 if there was none."""
    revision: int
    items: int
    """Number of live items."""
    tokens: int
    """Tokens of the live items, by ``counter``."""
    counter: str
    view: int
    """Number of the current view at that moment, 0 if there was none."""
    state: int | None
    """Counter of the session's state at that moment, 0 if it had none; None if unknown."""
    created_at: float
    """Seconds since the epoch by the writer's clock."""
    meta: Mapping[str, Any] | None = None


@record(frozen=True, slots=True)
class Violation:
    """One violated rule in a message list: position, call id, rule and a description."""

    position: int
    call_id: str | None
    rule: str
    reason: str


@record(frozen=True, slots=True)
class Repair:
    """One change that rendering made so that the provider accepts the context."""

    action: str
    """``hoisted``, ``synthesized``, ``orphan``, ``superseded``, ``reasoning``, ``merged``,
    ``renamed`` or ``lead_in``; ``dropped`` only from ``Session.repair``."""
    seq: int | None
    """Seq of the item it concerns (its position in a plain list)."""
    call_id: str | None = None


@record(frozen=True, slots=True)
class Conversion:
    """Result of ``memcore.convert``."""

    messages: list[Message]
    """Legal in the requested format; messages that were in this format already are not copied."""
    repairs: tuple[Repair, ...] = ()
    """Omissions and changes: as in contexts, and ``media``, ``opaque``, ``arguments`` (not a
    JSON object), ``status`` (a failed result), ``role``, ``form`` (fields or types that the format
    does not have) or ``empty`` (nothing is left to show)."""


@record(frozen=True, slots=True)
class Context:
    """Messages for the model: pins, summary, and the items from a safe cut on."""

    messages: list[Message]
    tokens: int
    """Tokens of ``messages`` as counted by the session's counter."""
    cut: int
    """The first seq after the cut (a plain list: the first position); everything before it that
    is neither pinned nor summarized is omitted."""
    omitted: int
    """Number of items before the cut that are not shown unchanged."""
    summary: str | None = None
    repairs: tuple[Repair, ...] = ()
    open_calls: int = 0
    estimated_tokens: int | None = None
    """Estimated tokens that the provider will bill for these messages; None if no usage was
    reported for the model. See ``Session.report_usage``."""
    limited_by: str | None = None
    """Reason why earlier items are omitted. ``"budget"``: they do not fit. ``"start rule"``: the
    policy does not allow a context to start there. ``"open calls"``: room is kept for the results
    of unanswered calls. ``"repair"``: additions by repairs took the room. ``"summary"``: a view
    represents them. None: no cut was needed; items of authors that were not requested do not count.
    The budget is net of ``reserve_tokens``, in the provider's tokens if it is calibrated."""
    memories: tuple[RecalledMemory, ...] = ()
    """Memories and playbooks in ``messages``, in the order in which they are shown."""

    def _repr_html_(self) -> str:
        from memcore.preview import html_table, preview  # noqa: PLC0415 - for notebooks alone

        messages, tokens = counted(len(self.messages), "message"), counted(self.tokens, "token")
        title = f"{messages}, {tokens}, {self.omitted:,} omitted"
        title += f", {counted(len(self.repairs), 'repair')}" if self.repairs else ""
        rows = ((each.get("role", each.get("type", "")), preview(each)) for each in self.messages)
        return html_table(title, ("role", "text"), rows)


# --- Long-term memory -----------------------------------------------------------------------------


class Source(NamedTuple):
    """Items of a session that a memory rests on."""

    session: str
    """Name of the session, of the memory's own scope."""
    seqs: tuple[int, ...]


@record(frozen=True, slots=True)
class Memory:
    """One version of a long-term memory. Times are seconds since 1970.

    ``version`` and ``recorded_at`` are about what was known, ``valid_from`` and ``valid_to`` about
    what was true. Ids and versions give the order; times only inform.
    """

    id: int
    version: int
    kind: str
    """``fact``, ``preference``, ``event``, ``procedure`` or ``note``."""
    text: str
    """Empty once it is forgotten."""
    attributes: Mapping[str, Any]
    subject: str | None
    """Person or thing that it is about."""
    slot: str | None
    """Property of the subject that has one value at a time; None: none."""
    labels: Mapping[str, str]
    sources: tuple[Source, ...]
    by: str
    """Origin of the statement, the most trusted first: ``operator``, ``user``, ``confirmed``,
    ``assistant``, ``agent``, ``tool``, ``import``."""
    extractor: str | None
    """Name and version of the program that made the statement from its sources."""
    confidence: float | None
    """Confidence of the extractor, 0 to 1."""
    importance: float | None
    """Importance as stated by the caller, 0 to 1."""
    recorded_at: float
    """Time of this version."""
    observed_at: float | None
    """Time of the newest item that it rests on, unless the caller states another."""
    valid_from: float | None
    valid_to: float | None
    """Exclusive end of the time in which it is true; None: it has none."""
    superseded_by: int | None
    """Id of the memory that replaced it in its slot."""
    derived_from: tuple[int, ...]
    """Ids of the memories that it was made from."""
    support: int
    """Number of independent sessions that it rests on; forks count as their parent."""
    status: str
    """``active``, ``quarantined``, ``superseded``, ``archived`` or ``forgotten``."""
    expires_at: float | None
    uses: int
    """Number of times it was given to a model; not exact, as it is written with other changes."""
    promoted_by: str | None = None
    """Name of the one who released it from quarantine; None: nobody had to."""
    shared_from: tuple[str, str] | None = None
    """Application and user whose memory it is, if a grant shows it; its id is one of theirs."""
    reason: str | None = None
    """Words given when it was forgotten."""


@record(frozen=True, slots=True)
class Grant:
    """Permission of one user to read memories of another. Times are seconds since 1970."""

    id: int
    """Number among the giver's memories and grants."""
    app: str
    user: str
    """Giver: application and user."""
    to_app: str
    to_user: str
    """Receiver: application and user."""
    kinds: tuple[str, ...] | None
    """Kinds of the memories that it shows; None: all."""
    labels: Mapping[str, str]
    """Labels that the memories have."""
    redact: str | None
    """Name of the redaction policy by which they are shown; None: as they are."""
    until: float | None
    """Time at which it ends; None: when it is revoked."""
    given_at: float


@record(frozen=True, slots=True)
class MemoryHit:
    """A memory that a search found."""

    memory: Memory
    score: float
    """Relevance; comparable within one result only."""
    snippet: str
    """Extract of its text, about 200 characters with the most matching words."""
    highlights: tuple[tuple[int, int], ...]
    """``(start, stop)`` of the matching words in the snippet."""
    why: tuple[TermScore, ...] = ()
    """With ``explain``: the terms of the query that it has."""
    similarity: float = 0.0
    """With ``explain``: the cosine similarity of its vector to the query's; 0 without vectors."""


class RecalledMemory(NamedTuple):
    """A memory or playbook that a context shows."""

    id: int | None
    """Id of the memory; None: it is a playbook."""
    version: int
    tokens: int
    """Tokens of its line by the session's counter."""
    why: str
    """Reason why it is shown, in a few words."""
    scenario: str = ""
    """Scenario of the playbook."""
    score: float | None = None
    """Relevance to the query that found it; None: it is in the stable part."""
    shared_from: tuple[str, str] | None = None
    """Application and user whose memory it is, if a grant shows it."""


class PlaybookPatch(NamedTuple):
    """A step that failed, and what was done about it."""

    step: str
    """Name of the tool."""
    failures: int
    """Number of its failures."""
    instead: str | None = None
    """Tool that was called next in a session that passed nevertheless."""


@record(frozen=True, slots=True)
class Playbook:
    """Steps of the sessions of one scenario and their successes: names and counts only."""

    scenario: str
    version: int
    """Grows with each change of the steps or patches; counts change in place."""
    steps: tuple[str, ...]
    """Tools in the order of the first session that passed; never rewritten."""
    patches: tuple[PlaybookPatch, ...]
    """Steps that failed in some session, in the order of their first failure."""
    successes: int
    """Number of independent sessions that passed; forks count as their parent."""
    failures: int
    reasons: Mapping[str, int]
    """Reasons of the failures as told, the most frequent ones, with their counts."""
    iterations: int
    """Median number of items that call tools."""
    score: float
    """Lower bound of the share of successes at 95 % confidence (Wilson), 0 to 1."""
    status: str
    """``active`` from three independent sessions on, else ``quarantined``."""
    recorded_at: float
    """Time of the last outcome, seconds since 1970."""


@record(frozen=True, slots=True)
class Calibration:
    """Calibration of the session's counter for one model, from usage reports."""

    model: str | None
    """None: reports without a model."""
    counter: str
    """Id of the counter."""
    factor: float
    """Provider tokens per token of the counter: 0.8 to 2.0, and 1.0 before two reports."""
    reports: int
    """Number of reports incorporated."""
    anchored: bool
    """True if the last report still applies: its messages are a prefix of what is sent next."""
    input_tokens: int = 0
    """Tokens billed by the provider in the report that serves as the anchor; 0 without one."""
    counted_tokens: int = 0
    """Tokens of the anchor's messages by the counter."""
    seq: int = 0
    """Last item in the anchor's messages."""


class Mask(NamedTuple):
    """Replacement that a view shows for one item; the log keeps the original."""

    seq: int
    action: str
    """Action of a reducer: ``cleared``, ``elided``, ``arguments``, ``duplicate``, ``similar``,
    ``offloaded`` or ``reasoning``; or of a repair: ``dropped``, ``orphan``, ``superseded`` or
    ``reasoning``."""
    tokens: int
    """Tokens of ``message``; 0 if the item is hidden."""
    message: Message | None
    """Makes and answers the same calls as the item, unless it is a repair. None: the item is
    hidden."""
    because: int = 0
    """Seq of a later item that a repair depends on: without it the mask does not apply. 0: none."""


@record(frozen=True, slots=True)
class SummaryRequest:
    """Input of a summarizer."""

    messages: Sequence[Message]
    """Items to fold, oldest first, without those that an earlier summary covers. With ``level``
    above 0: earlier summaries, as user messages."""
    previous_summary: str | None = None
    """Summary that the new one includes and replaces."""
    session_id: str | None = None
    max_tokens: int | None = None
    """Requested size limit of the summary; a longer one is refused if it saves nothing."""
    language: str | None = None
    """``"en"`` or ``"zh"``; None: the language of the messages."""
    instructions: str | None = None
    """Additional instructions of the policy."""
    level: int = 0
    """0: summarizes items; above 0: summarizes the summaries of the level below."""
    system: Sequence[Message] = ()
    """Instructions at the beginning of the context. They stay there: use them to judge what matters
    to this agent, and do not summarize them."""


class Summarizer(Protocol):
    """Summarizes items. Any callable will do; exceptions that it raises are handled."""

    def __call__(self, request: SummaryRequest, /) -> str | Awaitable[str]:
        """Return the summary; an awaitable only under ``memcore.aio``."""


Summarize: TypeAlias = Callable[[SummaryRequest], str]


@record(frozen=True, slots=True)
class Plan:
    """Result of choosing what to compact; applied in one commit."""

    revision: int
    """Revision when planned; the plan applies while the history begins with what it folds."""
    cut: int
    """Position of the first item that stays."""
    cut_seq: int
    fold_from: int
    """Position of the first item that this plan folds (pins and earlier folds precede it)."""
    pinned: tuple[int, ...] = ()
    """Seqs before the cut that stay visible (in addition to the leading system items)."""
    tokens_before: int = 0
    """Tokens of the items from ``fold_from`` on, as shown before the compaction."""
    tokens_kept: int = 0
    """Tokens of the items that stay, as shown after the compaction."""
    masks: tuple[Mask, ...] = ()

    @property
    def folds(self) -> bool:
        """True if items are folded into the summary or hidden."""
        return self.cut > self.fold_from

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not self.folds and not self.masks


@record(frozen=True, slots=True)
class View:
    """A compaction record: represents the items before its cut, which the log keeps."""

    number: int
    parent: int
    """Number of the previous view, 0 for the first."""
    cut_seq: int
    """The last seq that the view covers."""
    covered: int
    """Number of items of the live history that the view covers."""
    summary: str | None
    pinned: tuple[int, ...]
    status: str
    """One of ``VIEW_STATUSES``."""
    tokens_before: int
    tokens_after: int
    created_at: float
    counter: str
    """Id of the counter of ``tokens_before`` and ``tokens_after``."""
    masks: tuple[Mask, ...] = ()
    """Replacements of items; masks of earlier views stay in force."""
    policy: str = ""
    """``POLICY/STAGE`` that requested it."""
    reason: str | None = None
    """Reason why it is not the requested summary; for a repair, counts of violations by kind."""
    repair: str | None = None
    """``drop`` or ``synthesize`` under a repair, made by this view or an earlier one."""
    repairs: tuple[Repair, ...] = ()
    """Violations that the repair found, including those that rendering repairs anyway."""


@record(frozen=True, slots=True)
class RepairResult:
    """Result of ``Session.repair``."""

    status: str
    """``repaired``; ``planned``: nothing was written; ``nothing``: there was nothing to do."""
    mode: str
    repairs: tuple[Repair, ...]
    """Violations that are not yet recorded."""
    masks: tuple[Mask, ...]
    """Replacements of items in contexts; rendering makes the remaining repairs."""
    tokens_before: int
    """Tokens of the items that a context shows after its pins."""
    tokens_after: int
    open_calls: tuple[OpenCall, ...] = ()
    """Calls that ``close_open`` abandons."""
    view: View | None = None


VIEW_STATUSES: Final = (
    "summarized",
    "trimmed",
    "masked",
    "repaired",
    "fallback_reduce",
    "fallback_slice",
    "fallback_last",
)


@record(frozen=True, slots=True)
class CompactionResult:
    """Result of ``Session.compact``."""

    status: str
    """Status of the view; ``nothing``: nothing to do; ``refused``: it would have saved too
    little."""
    plan: Plan
    view: View | None = None
    error: BaseException | None = field(default=None, compare=False)
    """Error of the summarizer, if a fallback was used."""
    reason: str | None = None
    """Reason why it is not the requested summary, or why nothing was recorded."""


@record(frozen=True, slots=True)
class RecountResult:
    """Result of ``Session.recount``."""

    items: int
    """Number of items counted; 0 if the session already used the counter."""
    counter_before: str
    counter: str
    tokens_before: int
    """Tokens of the live history by the previous counter."""
    tokens: int
    """Tokens of the live history by the new counter."""


@record(frozen=True, slots=True)
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
    counter: str
    """Id of the counter of ``tokens``."""
    created_at: float
    updated_at: float
