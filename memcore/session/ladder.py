"""Degrade, retry, ask a person: what becomes of a step that fails.

A step gets an ``Attempt``, on which it lays what it wants to append. Nothing of a failed attempt is
stored but an ``error`` event; what succeeds is stored in one commit under the request's id, once,
however often the request comes. In the end a ``hitl`` event holds the reason and a reproduction.
Events are in no context, so calls that are open meanwhile stay open, and legal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.envelope import Envelope
from memcore.errors import (
    CallerError,
    ClosedError,
    InternalError,
    InvalidOptionError,
    ReadOnlyError,
    StorageError,
)
from memcore.limits import IDEMPOTENCY_KEY_CHARS_MAX
from memcore.log import Draft, Prepared, decode_item, find_request, request_of
from memcore.model import Item, Receipt
from memcore.options import checked_int
from memcore.session.address import Address
from memcore.session.appending import AnyEnvelope, Appending, ItemOptions, options_of
from memcore.session.bundle import make_bundle
from memcore.session.changes import Changes, Closure, Settled
from memcore.session.escalation import HITL, once
from memcore.session.reading import Reading
from memcore.session.rules import Cause, LadderRules, Watch

__all__ = ["FATAL", "Attempt", "Ladder", "LadderOutcome", "Step", "Tried"]

_KEY: Final = "memcore:ladder:"
_LOOK_ITEMS: Final = 64
"""So many of the last items a new ladder looks at, for what went wrong before it."""
_SAID_CHARS: Final = 500
_BUNDLE_BYTES: Final = 16 * 1024
FATAL: Final = (ClosedError, ReadOnlyError, StorageError, InternalError)
"""Whoever cannot write cannot write that it failed either."""


class Attempt:
    """One try of a step: what it is told, and what it wants to append if it succeeds."""

    def __init__(self, appending: Appending, request_id: str, number: int, level: int) -> None:
        self._appending = appending
        self.request_id = request_id
        """The same in every attempt: for idempotency keys of what the step calls."""
        self.number = number
        """Counts the attempts, from 1."""
        self.level = level
        """0: the step itself; from 1 on: so far it is degraded."""
        self.prepared: list[Prepared] = []

    def append(
        self,
        item: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append an item once the attempt has succeeded. Errors as ``Session.append``."""
        options = options_of(meta, self.request_id, envelope)
        self.prepared += self._appending.prepare([item], options)

    def record(
        self,
        type: str,  # noqa: A002 - as Session.record
        payload: Any = None,
        *,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> None:
        """Append an event once the attempt has succeeded; the rules look at it at once."""
        options = options_of(meta, self.request_id, envelope)
        event = self._appending.prepare_event(type, payload, options)
        self.prepared += self._appending.guarded([event])

    def key(self, label: str) -> str:
        """An idempotency key that is the same in every attempt of the request."""
        return f"{_KEY}{self.request_id}:step:{label}"

    def items(self) -> Iterator[Item]:
        """What it wants to append, as it would be read."""
        for each in self.prepared:
            yield decode_item(0, each.body, each.flags, each.tokens, each.payload)


Step: TypeAlias = Callable[[Attempt], Any]
Tried: TypeAlias = tuple[Any, Exception | None]
"""What a step returned, or what it raised."""


@dataclass(frozen=True, slots=True)
class LadderOutcome:
    """What became of a request."""

    status: str
    """``ok``, ``degraded``, ``hitl`` (a person has to decide), ``repeated``: it was carried out, or
    waits for a person, since before; the step did not run."""
    request_id: str
    value: Any = None
    """What the step returned."""
    attempts: int = 0
    level: int = 0
    """0: the step itself; from 1 on: which of the fallbacks."""
    receipt: Receipt | None = None
    """Of what was stored, the ``hitl`` event included."""
    causes: tuple[Cause, ...] = ()
    """Why the last attempt failed."""
    hitl_seq: int | None = None
    """What ``Session.resolve_hitl`` takes."""
    error: Exception | None = field(default=None, compare=False)
    """What the last attempt raised."""


class _Rung(NamedTuple):
    level: int
    step: Step


class Ladder:
    """Runs steps of one session by rules; made by ``Session.ladder``. One thread at a time."""

    def __init__(self, address: Address, rules: LadderRules) -> None:
        self.rules = rules
        self._address = address
        self._reading = Reading(address)
        self._appending = Appending(address)
        self._changes = Changes(address)
        self._watch = Watch(rules)
        self._seen = 0
        """The last seq that the rules saw."""
        self._started = False

    def due(self) -> list[Cause]:
        """What applies because of items that were appended since the last look.

        Its time grows with these alone. The first look goes back a bounded way.

        Raises:
            CorruptValueError: an item is damaged.
        """
        if not self._started:
            self._started = True
            new = self._reading.tail(_LOOK_ITEMS, skip_corrupt=True)
        else:
            new = list(self._reading.items(self._seen + 1, None, skip_corrupt=False))
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
        """Run a step; if it fails degrade, then retry, then leave it to a person.

        An attempt fails if the step raises an Exception, or if a rule applies to what it appends,
        or to what was appended to the session meanwhile. KeyboardInterrupt and other
        BaseExceptions end the run, as do errors by which nothing can be stored.

        Args:
            step: gets an Attempt; what it returns is the outcome's value.
            request_id: names the request; one that was carried out does not run again.
            fallbacks: lesser forms of the step, each tried once, in this order.
            retries: how often the least form is tried again.

        Raises:
            InvalidOptionError: an argument is of a wrong type or out of range.
            ClosedError, ReadOnlyError, StorageError
        """
        steps = self.climb(step, request_id=request_id, fallbacks=fallbacks, retries=retries)
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
            except Exception as exc:  # noqa: BLE001 - whatever a step raises is a failed attempt
                tried = (None, exc)

    def climb(
        self, step: Step, *, request_id: str, fallbacks: Sequence[Step], retries: int
    ) -> Generator[tuple[Attempt, Step], Tried, LadderOutcome]:
        """``run``, for whoever runs the steps by themselves: what to try next, and its outcome."""
        _check_request(request_id)
        checked_int("retries", retries)
        rungs = _rungs(step, fallbacks, retries)
        repeated = self._before(request_id)
        if repeated is not None:
            return repeated
        self.due()  # what went wrong before is no failure of this request
        failures: list[tuple[tuple[Cause, ...], Exception | None]] = []
        for number, rung in enumerate(rungs, 1):
            attempt = Attempt(self._appending, request_id, number, rung.level)
            value, error = yield attempt, rung.step
            causes = self._judge(attempt, error)
            if not causes:
                receipt = self._finish(attempt)
                status = "degraded" if rung.level else "ok"
                return LadderOutcome(status, request_id, value, number, rung.level, receipt)
            failures.append((causes, error))
            self._note(attempt, causes, error)
        return self._escalate(request_id, failures, rungs[-1].level)

    # --- one attempt ------------------------------------------------------------------------------

    def _judge(self, attempt: Attempt, error: Exception | None) -> tuple[Cause, ...]:
        """Why an attempt failed; nothing if it did not."""
        found = self.due()
        if error is not None:
            return (*found, Cause("failed", _said(error)))
        return (*found, *self._watch.copy().see_all(attempt.items()))

    def _finish(self, attempt: Attempt) -> Receipt:
        """Store what the attempt laid down; if there is nothing, that it was done."""
        prepared = attempt.prepared
        if not prepared:
            options = ItemOptions(None, attempt.request_id, Envelope(status="ok"))
            prepared = [self._appending.prepare_event("x-done", None, options)]
        closure = once(self._address, self._changes, _done_key(attempt.request_id), prepared)
        receipt = self._appending.store(prepared, closure)
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
        event = [self._appending.prepare_event("error", payload, options)]
        key = f"{_KEY}{attempt.request_id}:attempt:{attempt.number}"
        self._appending.store(event, once(self._address, self._changes, key, event))

    def _escalate(
        self,
        request_id: str,
        failures: list[tuple[tuple[Cause, ...], Exception | None]],
        level: int,
    ) -> LadderOutcome:
        causes, error = failures[-1]
        bundle = make_bundle(
            self._address, self._reading, seq=None, most_bytes=_BUNDLE_BYTES, policy=None
        )
        payload = {
            "rule": causes[-1].rule,
            "reason": causes[-1].reason,
            "attempts": len(failures),
            "failures": [[cause.rule for cause in found] for found, _ in failures],
            "bundle": json.loads(bundle),
        }
        options = ItemOptions(None, request_id, Envelope(type=HITL, status="pending"))
        event = [self._appending.prepare_event(HITL, payload, options)]
        closure = once(self._address, self._changes, _done_key(request_id), event)
        receipt = self._appending.store(event, closure)
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
        """What became of the request when it came before, None if it did not."""
        request = request_of(
            _done_key(request_id), [b""], seed=self._address.backing.seed, ttl_ms=None
        )

        def work(draft: Draft) -> Settled:
            return Settled(find_request(draft, request, now_ms=0))

        look: Closure[Receipt | None] = self._changes.change(
            work, create=False, missing=lambda: None
        )
        receipt = self._address.backing.store.transact(look)
        if receipt is None:
            return None
        is_hitl = self._reading.get(receipt.seq).type == HITL
        seq = receipt.seq if is_hitl else None
        return LadderOutcome("repeated", request_id, receipt=receipt, hitl_seq=seq)


def _rungs(step: Step, fallbacks: Iterable[Step], retries: int) -> list[_Rung]:
    listed = [step, *fallbacks]
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
    """The sort of an error, and what it says if memcore knows that no content is in it."""
    name = type(error).__name__
    return f"{name}: {error}"[:_SAID_CHARS] if isinstance(error, CallerError) else name
