"""WriteGuard: who judges what is about to be stored, and what they are told of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from memcore.errors import BlockedError, InvalidOptionError

__all__ = [
    "VERDICTS",
    "Judgement",
    "Verdict",
    "WriteContext",
    "WriteGuard",
    "as_operator",
    "checked_guard",
    "judged",
]

Verdict: TypeAlias = Literal["allow", "redact", "quarantine", "drop", "block"]
VERDICTS: Final[tuple[Verdict, ...]] = ("allow", "redact", "quarantine", "drop", "block")
"""From the mildest to the strictest; of several guards the strictest verdict counts."""
_UNTOLD: Final = "no reason was given"
_REASON_CHARS: Final = 200

_operator: ContextVar[bool] = ContextVar("memcore_operator", default=False)


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Where something is about to be stored."""

    app: str
    user: str
    """Empty for what belongs to an application as a whole."""
    session: str | None
    """The session or the thread of a graph; None: it belongs to the user."""
    kind: str
    """``item``, ``event``, ``meta``, ``state``, ``kv``, ``blob``, ``file``, ``artifact``,
    ``memory``, ``checkpoint``, ``graph``, ``summary`` or ``mask``."""
    source: str
    """Who said it: ``user``, ``model``, ``tool``, ``system`` or ``event`` for what goes into the
    log, ``import`` for what is imported, else ``caller``."""
    name: str | None = None
    """Of the state's field (with its prefix), or the key/value namespace."""
    operator: bool = False
    """Whether it is written inside ``as_operator()``."""


class Judgement(NamedTuple):
    """A verdict and why; the reason is shown in errors and must not repeat the content."""

    verdict: Verdict
    reason: str = _UNTOLD


@runtime_checkable
class WriteGuard(Protocol):
    """What ``memcore.open(guard=...)`` takes."""

    def judge(self, value: Any, write: WriteContext) -> Judgement | Verdict:
        """Judge a value before anything of it is stored.

        It is called on the caller's thread, before the change is queued; what it raises blocks the
        write. ``value`` must not be changed: JSON, text or bytes.
        """


ALLOW: Final = Judgement("allow", "")


@contextmanager
def as_operator() -> Iterator[None]:
    """What is written inside the ``with`` block is written by an operator.

    It holds for this thread or task alone. It is a statement of the program, not a proof: keep it
    out of code that a model drives.
    """
    token = _operator.set(True)
    try:
        yield
    finally:
        _operator.reset(token)


def is_operator() -> bool:
    """Whether the caller is inside ``as_operator()``."""
    return _operator.get()


def checked_guard(given: Any) -> tuple[WriteGuard, ...]:
    """The guards of the ``guard`` option: one, or several in a list.

    Raises:
        InvalidOptionError: one of them is no WriteGuard.
    """
    if given is None:
        return ()
    listed = list(given) if isinstance(given, Sequence) else [given]
    for guard in listed:
        if not callable(getattr(guard, "judge", None)):
            msg = (
                f"guard: expected an object with judge(value, write), or a list of them, got "
                f"{type(guard).__name__}"
            )
            raise InvalidOptionError(msg)
    return tuple(listed)


def judged(guards: Sequence[WriteGuard], value: Any, write: WriteContext) -> Judgement:
    """The strictest judgement of the guards; ``block`` raises.

    Raises:
        BlockedError: a guard said so, raised, or gave no verdict.
    """
    found = ALLOW
    for guard in guards:
        name = type(guard).__name__
        try:
            given = guard.judge(value, write)
        except Exception as exc:
            msg = f"the guard {name} failed on {_told(write)}: nothing was stored"
            raise BlockedError(msg, verdict="block", reason="the guard failed") from exc
        judgement = given if isinstance(given, Judgement) else Judgement(given)
        if judgement.verdict not in VERDICTS:
            msg = (
                f"the guard {name} gave no verdict on {_told(write)}: expected one of "
                f"{', '.join(VERDICTS)}; nothing was stored"
            )
            raise BlockedError(msg, verdict="block", reason="no verdict")
        if not isinstance(judgement.reason, str) or not judgement.reason:
            judgement = judgement._replace(reason=_UNTOLD)
        if VERDICTS.index(judgement.verdict) > VERDICTS.index(found.verdict):
            found = judgement
    if found.verdict == "block":
        raise blocked(write, found.reason)
    return found


def blocked(write: WriteContext, reason: str) -> BlockedError:
    """The error of a write that is refused."""
    msg = f"{_told(write)} was blocked by a guard: {reason:.{_REASON_CHARS}}; nothing was stored"
    return BlockedError(msg, verdict="block", reason=reason)


def _told(write: WriteContext) -> str:
    where = "" if write.session is None else f" of session {write.session!r:.80}"
    named = "" if write.name is None else f" {write.name!r:.80}"
    return f"the {write.kind}{named} from {write.source}{where}"
