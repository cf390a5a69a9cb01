"""Retry ladder for a failing step: retry, degrade, escalate to a human.

A step receives an ``Attempt``, which buffers what it wants to append. A failed attempt stores only
an ``error`` event; a successful one is stored in one commit under the request's id, exactly once
however often the request is repeated. As a last resort, a ``hitl`` event records the reason and a
reproduction. Events are never part of a context, so calls that are open meanwhile stay open and
legal.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.errors import (
    CallerError,
    ClosedError,
    InternalError,
    InvalidOptionError,
    NotFoundError,
    OrphanResultError,
    ReadOnlyError,
    StorageError,
)
from memcore.limits import IDEMPOTENCY_KEY_CHARS_MAX, ITEMS_PAGE
from memcore.log import (
    CachedSession,
    Prepared,
    SessionTxn,
    decode_item,
    find_request,
    request_of,
)
from memcore.log.history import TailLedger
from memcore.log.idempotency import IdempotentRequest
from memcore.model import FAILED, Envelope, Item, ItemKind, Receipt
from memcore.options import (
    checked_bool,
    checked_int,
    checked_optional_int,
    checked_several,
    checked_texts,
    need_instance,
    need_plain_function,
    shown,
)
from memcore.privacy import PlacedRedaction, Redaction, RedactionPolicy
from memcore.records import record
from memcore.rows.item import split_body
from memcore.session.append import (
    AnyEnvelope,
    Append,
    ItemOptions,
    encode_event,
    encode_items,
    options_of,
    split_large,
    store,
)
from memcore.session.change import Change, Unchanged
from memcore.session.engine import SessionRef
from memcore.session.read import (
    Found,
    collect,
    decoded,
    get_item,
    head_of,
    iter_items,
    last_items,
    read_log,
)
from memcore.store.interface import ReadTxn

__all__ = [
    "FATAL",
    "HITL",
    "RULES",
    "Attempt",
    "Cause",
    "Escalation",
    "Ladder",
    "LadderOutcome",
    "LadderRules",
    "Step",
    "Tried",
    "Watch",
    "append_once",
    "checked_rules",
    "make_bundle",
]


# --- Bundle: a minimal, redacted reproduction of a session's failure ------------------------------

BUNDLE_FORMAT: Final = 1
BUNDLE_BYTES_LEAST: Final = 2048
_RETRIES_MAX: Final = 1000
_ITEMS_MAX: Final = 64
"""Items shown around the failure, at most; whole groups."""
_TAIL_TYPES: Final = 32
_BUNDLE_LOOK_ITEMS: Final = 256
"""Items at the end of the history that are searched for a failure."""
_CLIPS: Final = (4000, 1000, 250, 60, 16)
"""Length limits of texts in characters: the first with which the bundle fits is used."""
_NAME_CHARS_LEAST: Final = 3
"""Shorter names of users and sessions also occur within words."""
_PLACES: Final = re.compile(
    r"(?<![\w/])(?:~|/(?:home|Users|root|tmp|var|opt|etc|mnt|srv|usr|private|data|work|app))"
    r"(?:/[^\s/'\"<>:|*?,;()]+)+|\b[A-Za-z]:\\[^\s'\"<>|*?]+"
)
_PLACE: Final = "[PATH]"
_NAME: Final = "[NAME]"
_IDS: Final = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "type", "role", "name")
)
_ID_CHARS: Final = 128
_MEDIA: Final = frozenset(
    (
        *("data", "file_data", "image_url", "url", "signature", "thought_signature"),
        *("thoughtSignature", "encrypted_content"),
    )
)
"""Members that are large or reveal a location; none helps to understand a failure."""


def make_bundle(
    ref: SessionRef,
    *,
    seq: int | None,
    most_bytes: int,
    policy: RedactionPolicy | None,
) -> bytes:
    """Return the bundle of a session as JSON.

    Raises:
        NotFoundError: there is no session, or no live item ``seq``.
        InvalidOptionError: ``most_bytes`` is below 2,048.
        CorruptValueError: an item in it is damaged.
    """
    checked_optional_int("seq", seq, least=1)
    checked_int("most_bytes", most_bytes, least=BUNDLE_BYTES_LEAST)

    found = read_log(ref, _collect, None, seq)
    if found is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    facts, rows, tail, failed = found
    items = decoded(rows)
    last = decoded(tail, skip_corrupt=True)[-_TAIL_TYPES:]
    types = [item.type for item in last]
    clean = _Clean(ref, policy)
    base = {
        "bundle": BUNDLE_FORMAT,
        "versions": {
            "memcore": sys.modules["memcore"].__version__,
            "python": platform.python_version(),
        },
        "session": facts,
        "failed": failed,
        "redaction": clean.policy_id,
        "types": [clean.text(each) for each in types],
    }
    return _fitted(base, items, failed, clean, most_bytes)


def _collect(
    log: CachedSession, txn: ReadTxn, seq: int | None
) -> tuple[dict[str, Any], list[Found], list[Found], int]:
    """Collect a session's facts, the slice, the last items, and the failure's slice index."""
    count = log.history.count
    tail = collect(log, txn, max(count - _BUNDLE_LOOK_ITEMS, 0), count)
    at = _failure(decoded(tail, skip_corrupt=True), seq, log)
    head = head_of(log)
    start, stop = _slice(log.full(txn, head), at, count)
    facts = {
        "policy": head.policy,
        "counter": head.counter,
        "items": count,
        "tokens": head.tokens,
        "open_calls": head.open_calls,
        "views": head.next_view - 1,
    }
    return facts, collect(log, txn, start, stop), tail, at - start


def _failure(tail: list[Item], seq: int | None, log: CachedSession) -> int:
    """Return the position of the item in question: the last failure, else the last item."""
    history = log.history
    if seq is not None:
        position = history.position_of(seq)
        if position is None:
            msg = f"the session has no live item {seq}"
            raise NotFoundError(msg)
        return position
    for item in reversed(tail):
        told = item.envelope
        failed = told is not None and told.status in FAILED
        if failed or item.type in ("error", "hitl"):
            return history.position_of(item.seq) or 0
    return max(history.count - 1, 0)


def _slice(recent: TailLedger, at: int, count: int) -> tuple[int, int]:
    """Return ``start, stop`` around a position: safe cuts, the first a legal context start."""
    ledger = recent.ledger
    cuts = [*ledger.safe_cuts(), count]
    stop = cuts[bisect_right(cuts, at)] if count else 0
    starts = ledger.safe_cuts(starts=True)
    before = bisect_right(starts, at)
    start = starts[before - 1] if before else 0
    if stop - start > _ITEMS_MAX:
        inner = bisect_right(cuts, at)
        start = cuts[inner - 1] if inner else 0
    return start, stop


class _Clean:
    """Removes from values what a bundle must not contain."""

    def __init__(self, ref: SessionRef, policy: RedactionPolicy | None) -> None:
        names = (ref.user, ref.name, ref.app, ref.engine.store.path)
        own = {name for name in names if len(name) >= _NAME_CHARS_LEAST and name != "default"}
        given = RedactionPolicy() if policy is None else policy
        need_instance("policy", given, RedactionPolicy, what="a RedactionPolicy or None")
        # Longest first: a name that is part of another one would leave the rest of that standing.
        self._own = sorted(own, key=lambda name: (-len(name), name))
        store = ref.engine.store
        # Not ``value()``, which would make a secret: a bundle writes nothing.
        secret = store.secret.found() or store.seed
        placed = Redaction(given, secret=secret).for_place(ref.app, ref.user, ref.name)
        self._placed: PlacedRedaction = placed
        self.policy_id = placed.policy_id

    def text(self, text: str) -> str:
        """Return a text without personal data, names and paths."""
        return self._nameless(self._placed.text(text))

    def value(self, value: Any, clip: int) -> Any:
        """Return a JSON value with texts of at most ``clip`` characters; keeps ids, hence pairs."""
        return self._walk(self._placed.value(value)[0], "", clip)

    def _nameless(self, text: str) -> str:
        for name in self._own:
            if name in text:
                text = text.replace(name, _NAME)
        return _PLACES.sub(_PLACE, text)

    def _walk(self, value: Any, key: str, clip: int) -> Any:
        if isinstance(value, str):
            return self._leaf(value, key, clip)
        if isinstance(value, list | tuple):
            return [self._walk(entry, key, clip) for entry in value]
        if not isinstance(value, Mapping):
            return value
        found = {
            str(self._leaf(self._placed.text(name), "", clip)): self._walk(entry, name, clip)
            for name, entry in value.items()
        }
        if found.get("role") == "user" and isinstance(found.get("name"), str):
            found["name"] = _NAME
        return found

    def _leaf(self, text: str, key: str, clip: int) -> str:
        if key in _MEDIA or text.startswith("data:"):
            return f"[{len(text):,} characters left out]"
        if key == "arguments":
            with suppress(ValueError, RecursionError):
                inner = json.loads(text)
                if isinstance(inner, dict | list):
                    return json.dumps(self._walk(inner, "", clip), ensure_ascii=False)
        # Cut as short as texts, different ids could become equal, and calls seem to be answered.
        most = max(clip, _ID_CHARS) if key in _IDS else clip
        return _clipped(self._nameless(text), most)


def _clipped(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}[…{len(text) - most // 2 * 2:,}…]{text[-(most // 2) :]}"


def _fitted(
    base: dict[str, Any], items: list[Item], failed: int, clean: _Clean, most_bytes: int
) -> bytes:
    """Return the bundle with as much text as the limit allows."""
    for clip in _CLIPS:
        shown = [_shown(item, clean, clip) for item in items]
        packed = _packed({**base, "slice": shown})
        if len(packed) <= most_bytes:
            return packed
    # Still too large: reduce items to their types, then keep only the one that failed.
    shown = [{"seq": item.seq, "type": clean.text(item.type)} for item in items]
    for kept in (shown, shown[failed : failed + 1], []):
        packed = _packed({**base, "slice": kept, "left_out": len(items) - len(kept)})
        if len(packed) <= most_bytes:
            return packed
    return _packed({**base, "types": [], "slice": [], "left_out": len(items)})


def _shown(item: Item, clean: _Clean, clip: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seq": item.seq,
        "kind": ItemKind(item.kind).name.lower(),
        "type": clean.text(item.type),
        "tokens": item.tokens,
        "item": clean.value(item.message, clip),
    }
    if item.envelope is not None:
        told = item.envelope.mapping()
        told.pop("owner", None)
        found["envelope"] = clean.value(told, clip)
    if item.meta is not None:
        found["meta"] = clean.value(dict(item.meta), clip)
    return found


def _packed(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")


# --- Escalations: events of type ``hitl`` that await a person, and decisions on them --------------

HITL: Final = "hitl"
_ROW: Final = b'{"type":"hitl"'


@record(frozen=True, slots=True)
class Escalation:
    """A request that awaits a person's decision."""

    seq: int
    """Seq of the ``hitl`` event, which ``resolve_hitl`` takes."""
    rule: str | None
    reason: str | None
    request_id: str | None
    created_at: float
    """Seconds since the epoch, by the writer's clock."""
    payload: Any
    """The event's payload; ``payload["bundle"]`` is the reproduction, if a ladder wrote it."""


def pending_escalations(ref: SessionRef) -> list[Escalation]:
    """Return the escalations without a decision, oldest first. Scans the rows of all live items.

    Raises:
        CorruptValueError: one of the events is damaged.
    """
    found: dict[int, Escalation] = {}
    for item in _hitl_events(ref):
        payload = item.message["payload"]
        said = payload if isinstance(payload, dict) else {}
        resolved = said.get("resolves")
        if type(resolved) is int:
            found.pop(resolved, None)
        else:
            found[item.seq] = _escalation(item, said)
    return list(found.values())


def _hitl_events(ref: SessionRef) -> list[Item]:
    rows: list[Found] = read_log(ref, _collect_hitl, [])
    return [item for item in decoded(rows) if _is_hitl(item)]


def _collect_hitl(log: CachedSession, txn: ReadTxn) -> list[Found]:
    """Collect the live items that may be ``hitl`` events."""
    rows: list[Found] = []
    count = log.history.count
    for start in range(0, count, ITEMS_PAGE):
        for row in log.rows(txn, start, min(start + ITEMS_PAGE, count)):
            if type(row) is tuple and _may_be_hitl(row[3]):
                rows += collect(log, txn, row[0], row[0] + 1)
    return rows


def resolve(
    ref: SessionRef, seq: int, decision: Any, *, by: str | None, meta: Mapping[str, Any] | None
) -> Append:
    """Append an event with a decision. Repeating the same decision stores nothing.

    Raises:
        NotFoundError: no live item ``seq`` awaits a decision.
        InvalidItemError: the decision is not JSON-serializable.
        InvalidOptionError: an argument has the wrong type.
        DuplicateRequestError (when run): a different decision was recorded before.
    """
    checked_int("seq", seq, least=1)
    if by is not None and not isinstance(by, str):
        msg = f"by: expected a str or None, got {type(by).__name__}"
        raise InvalidOptionError(msg)
    item = get_item(ref, seq)
    payload = item.message.get("payload")
    is_decision = isinstance(payload, dict) and "resolves" in payload
    if not _is_hitl(item) or is_decision:
        msg = f"item {seq} of session {ref.name!r} waits for no decision"
        raise NotFoundError(msg)
    said = {"resolves": seq, "decision": decision}
    if by is not None:
        said["by"] = by
    event = encode_event(ref, HITL, said, ItemOptions(meta, item.request_id))
    key = f"memcore:hitl:{seq}"
    content = split_body(event.body)[3] if event.payload is None else event.payload
    return append_once(ref, key, [event], content=content)


def append_once(
    ref: SessionRef, key: str, items: list[Prepared], *, content: bytes = b""
) -> Append:
    """Append items once per key; while they are live, a repeat returns the first receipt.

    ``content`` is what a repeat must match; empty by default, so that a repeat may differ.
    """
    request = request_of(key, [content], seed=ref.engine.seed, ttl_ms=None)
    return Append(ref, items, request=request)


class FindReceipt(Change[Receipt | None]):
    """Find the receipt of a request already carried out; writes nothing."""

    __slots__ = ("request",)
    creates = False

    def __init__(self, ref: SessionRef, request: IdempotentRequest) -> None:
        self.request = request
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Look the request up in the transaction."""
        now_ms = self.ref.engine.now_ms()
        return Unchanged(find_request(session, self.request, now_ms=now_ms))

    def missing(self) -> None:
        """Return None."""


def _may_be_hitl(body: bytes) -> bool:
    if body[0] != ItemKind.EVENT:
        return False
    rest = split_body(body)[3]
    return rest.startswith(_ROW) or not rest.startswith(b"{")  # a large one is stored in a blob


def _is_hitl(item: Item) -> bool:
    return item.kind == ItemKind.EVENT and item.message.get("type") == HITL


def _escalation(item: Item, said: Mapping[str, Any]) -> Escalation:
    def text(name: str) -> str | None:
        return said[name] if isinstance(said.get(name), str) else None

    payload = item.message["payload"]
    return Escalation(
        item.seq, text("rule"), text("reason"), item.request_id, item.created_at, payload
    )


# --- Stuck agents: declarative rules, evaluated over a history one item at a time -----------------
# The cost per item is constant, whatever the length of the history.

RULES: Final = (
    "parse_failed",
    "reflection_limit",
    "low_confidence",
    "high_risk",
    "tool_failures",
    "failed",
)
"""Names of the rules; ``failed``: a step raised an error."""
_PARSE_FAILED: Final = "parse_failed"
_ANEW: Final = frozenset(("user_input", "final", "hitl"))
"""Types of items that reset the count of reflections."""
_RISK_FIELDS: Final = ("severity", "risk", "level")
_CODES: Final = ("code", "error_code", "error", "reason")
_SAID_CHARS: Final = 120


@record(frozen=True, slots=True, kw_only=True)
class LadderRules:
    """Rules under which a step counts as failed even if nothing was raised; None disables a rule.

    Evaluated on recorded items: ``error`` events with a ``code`` that ends in ``parse_failed``;
    ``reflection`` events with ``pass`` (or ``pass_``), ``confidence`` and ``issues``, each a text
    or an object with a ``severity`` (``risk``, ``level``); tool results by their envelope.

    Raises:
        InvalidOptionError: a field has the wrong type or is out of range.
    """

    parse_failed: bool = True
    reflections_max: int | None = 3
    """Number of consecutive reflections without a pass at which the rule applies."""
    confidence_min: float | None = 0.5
    risks: tuple[str, ...] = ("high", "critical")
    """Severities of issues that a person must see, or issues with such a name."""
    tool_failures_max: int | None = 3
    """Number of consecutive failures of the same tool at which the rule applies."""

    def __post_init__(self) -> None:
        checked_bool("parse_failed", self.parse_failed)
        for name in ("reflections_max", "tool_failures_max"):
            value = getattr(self, name)
            if value is not None:
                checked_int(name, value, least=1)
        least = self.confidence_min
        if least is not None and not (_is_number(least) and 0 <= least <= 1):
            msg = f"confidence_min: expected a number of 0 to 1 or None, got {least!r:.40}"
            raise InvalidOptionError(msg)
        risks = checked_texts("risks", self.risks)
        object.__setattr__(self, "risks", tuple(risk.casefold() for risk in risks))


def checked_rules(given: object) -> LadderRules:
    """Return the rules for an argument: None, LadderRules or a mapping of their fields.

    Raises:
        InvalidOptionError: the argument is something else, or names an unknown field.
    """
    if given is None:
        return LadderRules()
    if isinstance(given, LadderRules):
        return given
    if not isinstance(given, Mapping):
        msg = f"rules: expected LadderRules, a mapping or None, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    known = [each.name for each in fields(LadderRules)]
    unknown = [name for name in given if name not in known]
    if unknown:
        msg = f"rules: {unknown[0]!r:.40} is no rule; expected {', '.join(known)}"
        raise InvalidOptionError(msg)
    return LadderRules(**given)


@record(frozen=True, slots=True)
class Cause:
    """A rule that applies."""

    rule: str
    """One of ``RULES``."""
    reason: str
    seq: int | None = None
    """Seq of the item that triggered it."""


@record(slots=True)
class Watch:
    """A ladder's rules, evaluated on items as they are appended."""

    rules: LadderRules
    reflections: int = 0
    """Consecutive reflections that did not pass."""
    failures: dict[str, int] = field(default_factory=dict)
    """Consecutive failures by tool."""

    def copy(self) -> Watch:
        """Return an independent copy."""
        return Watch(self.rules, self.reflections, dict(self.failures))

    def see_all(self, items: Iterable[Item]) -> list[Cause]:
        """Return the rules that apply because of these items, in item order."""
        return [cause for item in items for cause in self.see(item)]

    def see(self, item: Item) -> list[Cause]:
        """Return the rules that apply because of the next item."""
        kind = item.type
        if kind in _ANEW:
            self.reflections = 0
        payload = item.message.get("payload") if item.kind == ItemKind.EVENT else None
        said = payload if isinstance(payload, dict) else {}
        found: list[Cause] = []
        if kind == "error" and self.rules.parse_failed:
            code = next((said[name] for name in _CODES if isinstance(said.get(name), str)), "")
            if code.endswith(_PARSE_FAILED):
                found.append(Cause("parse_failed", f"{code:.{_SAID_CHARS}}", item.seq))
        elif kind == "reflection":
            found += self._reflection(said, item.seq)
        elif kind == "tool_result":
            found += self._result(item)
        return found

    def _reflection(self, said: Mapping[str, Any], seq: int) -> list[Cause]:
        rules, found = self.rules, []
        passed = said.get("pass_", said.get("pass"))
        self.reflections = self.reflections + 1 if passed is False else 0
        most = rules.reflections_max
        if most is not None and self.reflections >= most:
            reason = f"{self.reflections} reflections in a row did not pass"
            found.append(Cause("reflection_limit", reason, seq))
        sure, least = said.get("confidence"), rules.confidence_min
        # Negated, so that NaN counts as not confident.
        if least is not None and _is_number(sure) and not float(sure) >= least:  # type: ignore[arg-type]
            reason = f"confidence {float(sure):.3g} is below {least:.3g}"  # type: ignore[arg-type]
            found.append(Cause("low_confidence", reason, seq))
        issues = said.get("issues")
        for issue in issues if isinstance(issues, list) else ():
            named = [issue] if isinstance(issue, str) else []
            if isinstance(issue, dict):
                named = [issue[name] for name in _RISK_FIELDS if isinstance(issue.get(name), str)]
            risk = next((name for name in named if name.casefold() in rules.risks), None)
            if risk is not None:
                found.append(Cause("high_risk", f"an issue of risk {risk:.{_SAID_CHARS}}", seq))
                break
        return found

    def _result(self, item: Item) -> list[Cause]:
        told = item.envelope
        if told is None or told.tool is None:
            return []
        if not told.is_failure:
            self.failures.pop(told.tool, None)
            return []
        count = self.failures[told.tool] = self.failures.get(told.tool, 0) + 1
        most = self.rules.tool_failures_max
        if most is None or count < most:
            return []
        reason = f"tool {told.tool:.{_SAID_CHARS}} failed {count} times in a row"
        return [Cause("tool_failures", reason, item.seq)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- Ladder: degrade, retry and escalate a failing step -------------------------------------------

_KEY: Final = "memcore:ladder:"
_LOOK_ITEMS: Final = 64
"""Number of last items that a new ladder scans for earlier failures."""
_SAID_CHARS_LADDER: Final = 500
_BUNDLE_BYTES: Final = 16 * 1024
FATAL: Final = (ClosedError, ReadOnlyError, StorageError, InternalError)
"""Errors that end a run: if nothing can be written, the failure cannot be recorded either."""


class Attempt:
    """One attempt at a step: its inputs, and what it wants to append if it succeeds."""

    def __init__(self, ref: SessionRef, request_id: str, number: int, level: int) -> None:
        self._ref = ref
        self.request_id = request_id
        """The same for every attempt, for idempotency keys of calls that the step makes."""
        self.number = number
        """Number of the attempt, from 1."""
        self.level = level
        """Degradation level; 0: the step itself."""
        self.prepared: list[Prepared] = []

    def append(
        self,
        item: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append an item once the attempt has succeeded. Errors as for ``Session.append``."""
        options = options_of(meta, self.request_id, envelope)
        self.prepared += encode_items(self._ref, [item], options)

    def record(
        self,
        type: str,  # noqa: A002 - as Session.record
        payload: Any = None,
        *,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append an event once the attempt has succeeded; the rules are applied to it."""
        options = options_of(meta, self.request_id, envelope)
        event = encode_event(self._ref, type, payload, options)
        self.prepared += split_large(self._ref, [event])

    def key(self, label: str) -> str:
        """Return an idempotency key that is the same for every attempt at the request."""
        return f"{_KEY}{self.request_id}:step:{label}"

    def items(self) -> Iterator[Item]:
        """Yield the items it wants to append, as they would be read back."""
        for each in self.prepared:
            yield decode_item(0, each.body, each.flags, each.tokens, each.payload)


Step: TypeAlias = Callable[[Attempt], Any]
Tried: TypeAlias = tuple[Any, Exception | None]
"""The value that a step returned, or the error that it raised."""


@record(frozen=True, slots=True)
class LadderOutcome:
    """Outcome of a request."""

    status: str
    """``ok``, ``degraded``, ``hitl`` (awaits a person's decision), ``repeated``: the request was
    already carried out or already awaits a person; the step did not run."""
    request_id: str
    value: Any = None
    """The step's return value."""
    attempts: int = 0
    level: int = 0
    """0: the step itself; from 1 on: number of the fallback."""
    receipt: Receipt | None = None
    """Receipt of what was stored, including the ``hitl`` event."""
    causes: tuple[Cause, ...] = ()
    """Causes of the last attempt's failure."""
    hitl_seq: int | None = None
    """Seq of the ``hitl`` event, which ``Session.resolve_hitl`` takes."""
    error: Exception | None = field(default=None, compare=False)
    """Error raised by the last attempt."""


class _Rung(NamedTuple):
    level: int
    step: Step


class Ladder:
    """Runs steps of one session by rules; created by ``Session.ladder``. Not thread-safe."""

    def __init__(self, ref: SessionRef, rules: LadderRules) -> None:
        self.rules = rules
        self._ref = ref
        self._watch = Watch(rules)
        self._seen = 0
        """The last seq that the rules have seen."""
        self._started = False

    def due(self) -> list[Cause]:
        """Return the rules that apply because of items appended since the last call.

        Takes time linear in those items. The first call scans a bounded number of items.

        Raises:
            CorruptValueError: an item is damaged.
        """
        if not self._started:
            self._started = True
            new = last_items(self._ref, _LOOK_ITEMS, skip_corrupt=True)
        else:
            new = list(iter_items(self._ref, self._seen + 1, None))
        if new:
            self._seen = new[-1].seq
        return self._watch.see_all(new)

    def run(
        self,
        step: Step,
        *,
        request_id: str,
        fallbacks: Sequence[Step] = (),
        retries: int = 1,
    ) -> LadderOutcome:
        """Run a step; if it fails, degrade, then retry, then escalate to a person.

        An attempt fails if the step raises an Exception, or if a rule applies to what it appends or
        to what was appended to the session meanwhile. KeyboardInterrupt and other BaseExceptions
        end the run, as do errors that prevent storing anything.

        Args:
            step: takes an Attempt; its return value is the outcome's value.
            request_id: identifies the request; one already carried out is not run again.
            fallbacks: degraded forms of the step, each tried once, in this order.
            retries: additional attempts with the most degraded form.

        Raises:
            InvalidOptionError: an argument has the wrong type or is out of range.
            ClosedError, ReadOnlyError, StorageError
        """
        rungs = _rungs(step, fallbacks, 0)
        fallbacks = [each.step for each in rungs[1:]]  # an iterator gives them once
        steps = self.climb(step, request_id=request_id, fallbacks=fallbacks, retries=retries)
        for each in rungs:
            need_plain_function(
                "step, fallbacks", each.step, instead="the ladder of memcore.aio awaits it"
            )
        tried: Tried | None = None
        while True:
            try:
                attempt, rung = next(steps) if tried is None else steps.send(tried)
            except StopIteration as end:
                outcome: LadderOutcome = end.value
                return outcome
            try:
                tried = (rung(attempt), None)
            except FATAL:
                raise
            except Exception as exc:  # noqa: BLE001 - any error from a step is a failed attempt
                tried = (None, exc)

    def climb(
        self, step: Step, *, request_id: str, fallbacks: Sequence[Step], retries: int
    ) -> Generator[tuple[Attempt, Step], Tried, LadderOutcome]:
        """Like ``run``, for callers that run the steps: yields attempts, returns the outcome."""
        _check_request(request_id)
        if checked_int("retries", retries) > _RETRIES_MAX:
            msg = f"retries: expected at most {_RETRIES_MAX}, got {shown(retries)}"
            raise InvalidOptionError(msg)
        rungs = _rungs(step, fallbacks, retries)
        repeated = self._before(request_id)
        if repeated is not None:
            return repeated
        self.due()  # earlier failures do not count against this request
        failures: list[tuple[tuple[Cause, ...], Exception | None]] = []
        for number, rung in enumerate(rungs, 1):
            attempt = Attempt(self._ref, request_id, number, rung.level)
            value, error = yield attempt, rung.step
            causes = self._judge(attempt, error)
            if not causes:
                try:
                    receipt = self._finish(attempt)
                except OrphanResultError as exc:  # the step's own fault, found when it is stored
                    causes, error = (Cause("failed", _said(exc)),), exc
                else:
                    status = "degraded" if rung.level else "ok"
                    return LadderOutcome(status, request_id, value, number, rung.level, receipt)
            failures.append((causes, error))
            self._note(attempt, causes, error)
        return self._escalate(request_id, failures, rungs[-1].level)

    # --- one attempt ------------------------------------------------------------------------------

    def _judge(self, attempt: Attempt, error: Exception | None) -> tuple[Cause, ...]:
        """Return the causes of an attempt's failure; none if it succeeded."""
        found = self.due()
        if error is not None:
            return (*found, Cause("failed", _said(error)))
        # On a copy: a failed attempt is not stored, and ``due`` sees the items of the others.
        return (*found, *self._watch.copy().see_all(attempt.items()))

    def _finish(self, attempt: Attempt) -> Receipt:
        """Store what the attempt wants to append; if nothing, an event that it was done."""
        prepared = attempt.prepared
        # Without an item there is no receipt to find, and a repeat would run the step once more.
        if not prepared:
            options = ItemOptions(None, attempt.request_id, Envelope(status="ok"))
            prepared = [encode_event(self._ref, "x-done", None, options)]
        receipt = store(append_once(self._ref, _done_key(attempt.request_id), prepared))
        self.due()
        return receipt

    def _note(self, attempt: Attempt, causes: tuple[Cause, ...], error: Exception | None) -> None:
        """Record a failed attempt, once."""
        payload = {
            "attempt": attempt.number,
            "level": attempt.level,
            "rules": [[cause.rule, cause.reason] for cause in causes],
            "error": None if error is None else _said(error),
        }
        options = ItemOptions(None, attempt.request_id, Envelope(type="error", status="error"))
        event = [encode_event(self._ref, "error", payload, options)]
        key = f"{_KEY}{attempt.request_id}:attempt:{attempt.number}"
        store(append_once(self._ref, key, event))

    def _escalate(
        self,
        request_id: str,
        failures: list[tuple[tuple[Cause, ...], Exception | None]],
        level: int,
    ) -> LadderOutcome:
        causes, error = failures[-1]
        # The newest failure is the event that was just recorded for the last attempt.
        bundle = make_bundle(self._ref, seq=None, most_bytes=_BUNDLE_BYTES, policy=None)
        payload = {
            "rule": causes[-1].rule,
            "reason": causes[-1].reason,
            "attempts": len(failures),
            "failures": [[cause.rule for cause in found] for found, _ in failures],
            "bundle": json.loads(bundle),
        }
        options = ItemOptions(None, request_id, Envelope(type=HITL, status="pending"))
        event = [encode_event(self._ref, HITL, payload, options)]
        # Under the key of a success: a repeat finds the escalation instead of running the step.
        receipt = store(append_once(self._ref, _done_key(request_id), event))
        self.due()
        return LadderOutcome(
            HITL,
            request_id,
            attempts=len(failures),
            level=level,
            receipt=receipt,
            causes=causes,
            hitl_seq=receipt.seq,
            error=error,
        )

    def _before(self, request_id: str) -> LadderOutcome | None:
        """Return the outcome of an earlier run of the request, None if there was none."""
        # With the content of ``append_once``, or it would be a request with other content.
        request = request_of(_done_key(request_id), [b""], seed=self._ref.engine.seed, ttl_ms=None)
        receipt = self._ref.engine.store.transact(FindReceipt(self._ref, request))
        if receipt is None:
            return None
        is_hitl = get_item(self._ref, receipt.seq).type == HITL
        seq = receipt.seq if is_hitl else None
        return LadderOutcome("repeated", request_id, receipt=receipt, hitl_seq=seq)


def _rungs(step: Step, fallbacks: Iterable[Step], retries: int) -> list[_Rung]:
    listed = [step, *checked_several("fallbacks", fallbacks, "callables in a list")]
    for each in listed:
        if not callable(each):
            msg = f"step, fallbacks: expected callables, got {type(each).__name__}"
            raise InvalidOptionError(msg)
    rungs = [_Rung(level, each) for level, each in enumerate(listed)]
    return rungs + rungs[-1:] * retries


def _check_request(request_id: object) -> None:
    room = IDEMPOTENCY_KEY_CHARS_MAX - 100
    if not isinstance(request_id, str) or not 0 < len(request_id) <= room:
        msg = f"request_id: expected a str of 1 to {room} characters, got {request_id!r:.40}"
        raise InvalidOptionError(msg)


def _done_key(request_id: str) -> str:
    return f"{_KEY}{request_id}"


def _said(error: Exception) -> str:
    """Describe an error by type, and by its message only if memcore knows it holds no content."""
    name = type(error).__name__
    return f"{name}: {error}"[:_SAID_CHARS_LADDER] if isinstance(error, CallerError) else name
