"""Compaction policies: triggers, the items to keep, and how the rest is reduced.

A policy is data: an ordered list of stages, light to heavy. A stage is due when any of its triggers
is; the heaviest due stage runs. It folds everything outside its ``Keep`` into a summary (or trims
it), and its reducers mask parts of what stays. The log is never changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import field, fields, replace
from typing import Any, Final, NamedTuple

from memcore.compaction.reducers import Reducer
from memcore.errors import InvalidOptionError
from memcore.log import AnyLedger
from memcore.model import ItemKind
from memcore.options import (
    checked_bool,
    checked_int,
    checked_optional_int,
    checked_optional_share,
    checked_share,
)
from memcore.records import record

__all__ = [
    "CompactionPolicy",
    "Keep",
    "Pressure",
    "Stage",
    "SummaryStyle",
    "Trigger",
    "units_around",
]


# --- The items that a compaction keeps, and the resulting cut -------------------------------------

TOKENS_MAX: Final = 1 << 62
"""Larger than any history, and within the range of the ledger's integers."""

USERS: Final = 1 << ItemKind.USER
KEY_ITEMS: Final = (
    1 << ItemKind.USER | 1 << ItemKind.RESULT | 1 << ItemKind.ASSISTANT | 1 << ItemKind.EVENT
)
"""The kinds counted by ``Keep.key_items``: user messages, tool results, model answers without
calls, and recorded events (plans, errors, human decisions)."""


_SUFFIX_LIMITS: Final = (
    "last_items", "last_turns", "key_items", "tokens", "fraction", "max_tokens",
)  # fmt: skip


@record(frozen=True, slots=True, kw_only=True)
class Keep:
    """The items that a stage keeps; of the suffix limits, the one that keeps the most applies.

    A pair is never split: the cut is at or before the position that a limit selects.
    """

    last_items: int | None = 3
    """Keep at least this many items."""
    last_turns: int | None = None
    """Keep at least this many turns, each starting at a user item."""
    key_items: int | None = None
    """Keep at least the shortest suffix that holds this many key items: user items, results, final
    answers and events."""
    tokens: int | None = None
    """Keep the longest suffix within this many tokens."""
    fraction: float | None = None
    """Keep the longest suffix within this share of the policy's ``window_tokens``."""
    max_tokens: int | None = None
    """Limit on the suffix that the other options select, applied if a later cut is safe."""
    turn_start: bool = False
    """Start the kept suffix at an item that may start a context (a user item), if such a cut
    exists."""
    first_items: int = 0
    """Number of items after the pins that stay visible before the summary."""
    pinned: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges of seqs that stay visible."""
    tools: tuple[str, ...] = ()
    """Tools whose calls and results stay visible."""
    protect_open_items: int = 200
    """An open call is not folded until this many items follow it, so a call that is never answered
    cannot block compaction forever."""

    def __post_init__(self) -> None:
        for name in ("last_items", "last_turns", "key_items"):
            checked_optional_int(name, getattr(self, name))
        for name in ("tokens", "max_tokens"):
            checked_optional_int(name, getattr(self, name), least=1)
        checked_optional_share("fraction", self.fraction)
        checked_bool("turn_start", self.turn_start)
        checked_int("first_items", self.first_items)
        checked_int("protect_open_items", self.protect_open_items)
        object.__setattr__(self, "pinned", _checked_ranges(self.pinned))
        object.__setattr__(self, "tools", _checked_names(self.tools))
        if self.max_tokens is not None and self.max_tokens < (self.tokens or 0):
            msg = f"keep: tokens={self.tokens} is above max_tokens={self.max_tokens}"
            raise InvalidOptionError(msg)

    def cut(self, ledger: AnyLedger, *, first: int, window_tokens: int | None = None) -> int:
        """The position of the first kept item; at least ``first``.

        O(log n), plus a scan over the kinds of the kept items for ``last_turns`` and ``key_items``.
        """
        end = len(ledger)
        cuts = [end]
        if self.last_items is not None:
            cuts.append(ledger.cut_keep_last(min(self.last_items, ledger.shown_count)))
        if self.last_turns is not None:
            turn = ledger.last_of(USERS, min(self.last_turns, end), at_least=first)
            cuts.append(ledger.cut_at_most(turn))
        if self.key_items is not None:
            key = ledger.last_of(KEY_ITEMS, min(self.key_items, end), at_least=first)
            cuts.append(ledger.cut_at_most(key))
        for budget in (self.tokens, self._share_of(window_tokens)):
            if budget is not None:
                most = min(budget, TOKENS_MAX)
                found = ledger.cut_for_budget(most, at_least=first, starts=False)
                cuts.append(found if found >= 0 else end)
        cut = min(cuts)
        if self.max_tokens is not None:
            most = min(self.max_tokens, TOKENS_MAX)
            found = ledger.cut_for_budget(most, at_least=max(cut, 0), starts=False)
            cut = found if 0 <= found <= ledger.last_shown else cut
        opened = [at for at in ledger.open_positions() if end - at <= self.protect_open_items]
        latest = ledger.cut_at_most(opened[0]) if opened else end
        cut = min(cut, latest)
        if self.turn_start and cut > first:
            cut = self._at_start(ledger, cut, first, latest=latest)
        return max(cut, first)

    @property
    def pins(self) -> bool:
        """True if anything before the cut is kept."""
        return bool(self.first_items or self.pinned or self.tools)

    def _share_of(self, window_tokens: int | None) -> int | None:
        if self.fraction is None or window_tokens is None:
            return None
        return max(int(self.fraction * min(window_tokens, TOKENS_MAX)), 1)

    def _at_start(self, ledger: AnyLedger, cut: int, first: int, *, latest: int) -> int:
        """The context start nearest to a cut: later if tokens are bounded, else earlier.

        A later start is at most ``latest``, the safe cut before the first protected call.
        """
        starts = ledger.safe_cuts(starts=True)
        at = bisect_left(starts, cut)
        bounded = self.max_tokens is not None or self.last_items is None
        if bounded and at < len(starts) and starts[at] <= latest:
            return starts[at]
        at = bisect_right(starts, cut)
        return starts[at - 1] if at and starts[at - 1] >= first else cut


def units_around(cuts: Sequence[int], positions: Iterable[int], *, stop: int) -> list[int]:
    """The positions with everything inseparable from them, below ``stop``, ascending.

    That is everything between the safe cuts around each position: no pair crosses a safe cut, so
    the range between two of them is self-contained. ``cuts`` are the safe cuts in ascending order;
    ``stop`` is one of them.
    """
    found: set[int] = set()
    for position in positions:
        at = bisect_right(cuts, position)
        lo = cuts[at - 1] if at else 0
        hi = cuts[at] if at < len(cuts) else stop
        found.update(range(lo, min(hi, stop)))
    return sorted(found)


def _checked_ranges(given: object) -> tuple[tuple[int, int], ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        msg = f"pinned: expected ranges of seqs, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    found = []
    for entry in given:
        pair = entry if isinstance(entry, Sequence) and not isinstance(entry, str | bytes) else ()
        if len(pair) != 2:  # noqa: PLR2004 - a range has two ends
            msg = f"pinned: expected (first seq, last seq), got {entry!r:.80}"
            raise InvalidOptionError(msg)
        lo = checked_int("pinned", pair[0], least=1)
        found.append((lo, checked_int("pinned", pair[1], least=lo)))
    return tuple(found)


def _checked_names(given: object) -> tuple[str, ...]:
    if (
        isinstance(given, str | bytes)
        or not isinstance(given, Sequence)
        or not all(isinstance(name, str) and name for name in given)
    ):
        msg = f"tools: expected names of tools, got {given!r:.80}"
        raise InvalidOptionError(msg)
    return tuple(given)


# --- Triggers: the conditions under which a compaction is due, all known in O(1) ------------------


class Pressure(NamedTuple):
    """A session's current figures, against which triggers are evaluated."""

    items: int = 0
    """Items that are neither pinned, nor covered by a view, nor trailing events."""
    tokens: int = 0
    """Tokens of the context without a budget, before repairs, by the session's counter."""
    turns: int = 0
    """User items that no view covers."""
    idle_seconds: float = 0.0
    """Seconds since the session last changed, by this machine's clock; never negative."""
    event: str | None = None
    """Type of the event that ends the history, if one does."""
    waiting: bool = False
    """True if the last item is a tool result that the model has not seen yet."""
    stage: str | None = None
    """The policy's stage that is due; None if none is."""
    turns_left: int | None = None
    """Turns left before the policy's ``max_turns``; negative above it; None without a limit."""


@record(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A set of conditions, due when all of them hold. A stage needs only one of its triggers."""

    items: int | None = None
    """More than this many items that no view covers."""
    tokens: int | None = None
    """More than this many tokens in the context."""
    fraction: float | None = None
    """More than this share of the policy's ``window_tokens``."""
    turns: int | None = None
    """More than this many user items that no view covers."""
    idle_seconds: float | None = None
    """No change for at least this many seconds."""
    event: str | None = None
    """The history ends with an event of this type: ``session.record("task_end", ...)``."""

    def __post_init__(self) -> None:
        for name in ("items", "tokens", "turns"):
            checked_optional_int(name, getattr(self, name))
        checked_optional_share("fraction", self.fraction)
        idle = self.idle_seconds
        if idle is not None and (
            isinstance(idle, bool) or not isinstance(idle, int | float) or not idle >= 0
        ):
            msg = f"idle_seconds: expected a non-negative number, got {idle!r}"
            raise InvalidOptionError(msg)
        if self.event is not None and (not isinstance(self.event, str) or not self.event):
            msg = f"event: expected the type of an event, got {self.event!r}"
            raise InvalidOptionError(msg)
        if all(getattr(self, entry.name) is None for entry in fields(self)):
            msg = "Trigger() is always due: name at least one condition"
            raise InvalidOptionError(msg)

    def is_due(self, pressure: Pressure, window_tokens: int | None) -> bool:
        """Return whether all conditions hold."""
        if self.fraction is not None and (
            window_tokens is None or pressure.tokens / window_tokens <= self.fraction
        ):
            return False
        return not (
            (self.items is not None and pressure.items <= self.items)
            or (self.tokens is not None and pressure.tokens <= self.tokens)
            or (self.turns is not None and pressure.turns <= self.turns)
            or (self.idle_seconds is not None and pressure.idle_seconds < self.idle_seconds)
            or (self.event is not None and pressure.event != self.event)
        )


# --- Stages and policies: when to compact a session, what to keep and how to reduce the rest ------

LADDER: Final = ("reduce", "slice", "last")
"""Fallbacks for a missing summary, in order: masks instead of a fold, a short suffix from a safe
cut, the last item that is legal on its own."""
LANGUAGES: Final = ("en", "zh")


@record(frozen=True, slots=True, kw_only=True)
class SummaryStyle:
    """Options of a summary: length, language, additional instructions."""

    max_tokens: int | None = None
    """Requested maximum length of the summary."""
    language: str | None = None
    """``"en"`` or ``"zh"``; None: the language of the items."""
    instructions: str | None = None
    """Additional instructions: file paths for a coding agent, figures for an analysis."""

    def __post_init__(self) -> None:
        checked_optional_int("max_tokens", self.max_tokens, least=1)
        if self.language is not None and self.language not in LANGUAGES:
            msg = f"language: expected one of {', '.join(LANGUAGES)} or None; got {self.language!r}"
            raise InvalidOptionError(msg)
        if self.instructions is not None and not isinstance(self.instructions, str):
            msg = f"instructions: expected a str or None, got {type(self.instructions).__name__}"
            raise InvalidOptionError(msg)


@record(frozen=True, slots=True, kw_only=True)
class Stage:
    """One level of a policy."""

    name: str = "default"
    triggers: tuple[Trigger, ...] = ()
    """The stage is due if any of them is; without triggers it runs only when requested by name."""
    keep: Keep | None = field(default_factory=Keep)
    """The items to keep. None: nothing is folded; only the reducers apply."""
    reducers: tuple[Reducer, ...] = ()
    """Applied to the kept items, in this order."""
    summary: SummaryStyle | None = field(default_factory=SummaryStyle)
    """None: folded items are trimmed even if a summarizer is available."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            msg = f"stage name: expected a non-empty str, got {self.name!r}"
            raise InvalidOptionError(msg)
        object.__setattr__(self, "triggers", _tuple_of("triggers", self.triggers, Trigger))
        if self.keep is not None and not isinstance(self.keep, Keep):
            msg = f"keep: expected a Keep or None, got {type(self.keep).__name__}"
            raise InvalidOptionError(msg)
        reducers = _listed("reducers", self.reducers)
        for reducer in reducers:
            if not callable(getattr(reducer, "reduce", None)) or isinstance(reducer, type):
                msg = f"reducers: expected reducers, got {reducer!r:.80}"
                raise InvalidOptionError(msg)
        object.__setattr__(self, "reducers", reducers)
        if self.summary is not None and not isinstance(self.summary, SummaryStyle):
            msg = f"summary: expected a SummaryStyle or None, got {type(self.summary).__name__}"
            raise InvalidOptionError(msg)
        if self.keep is None and not reducers:
            msg = f"stage {self.name!r} does nothing: give it keep= or reducers="
            raise InvalidOptionError(msg)
        for trigger in self.triggers:
            _need_progress(self, trigger)


def _listed(name: str, given: object) -> tuple[Any, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        msg = f"{name}: expected a list, got {type(given).__name__}"
        raise InvalidOptionError(msg)
    return tuple(given)


def _tuple_of(name: str, given: object, kind: type) -> tuple[Any, ...]:
    found = _listed(name, given)
    for entry in found:
        if not isinstance(entry, kind):
            msg = f"{name}: expected {kind.__name__} objects, got {type(entry).__name__}"
            raise InvalidOptionError(msg)
    return found


def _need_progress(stage: Stage, trigger: Trigger) -> None:
    """Refuse a stage that keeps so much that it would be due again immediately, forever.

    Raises:
        InvalidOptionError: the stage keeps as much as makes it due.
    """
    keep = stage.keep
    if keep is None:
        return
    for unit in ("items", "turns", "tokens", "fraction"):
        due = getattr(trigger, unit)
        kept = getattr(keep, {"items": "last_items", "turns": "last_turns"}.get(unit, unit))
        if unit == "items":
            kept = (kept or 0) + keep.first_items
        if due is not None and kept is not None and kept >= due:
            msg = (
                f"stage {stage.name!r} is due above {due} {unit} and keeps {kept}: it would be due "
                "again at once; keep fewer or let it be due later"
            )
            raise InvalidOptionError(msg)


@record(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A compaction policy: stages, each with its triggers and its ``Keep``.

    ``memcore.compaction.presets`` has ready-made ones.
    """

    name: str = "custom"
    stages: tuple[Stage, ...] = (Stage(triggers=(Trigger(items=12),)),)
    """Light to heavy."""
    window_tokens: int | None = None
    """The model's context window, to which fractions refer."""
    max_turns: int | None = None
    """Turns (user items) in the whole history above which ``Pressure.turns_left`` is negative.
    Reported, never enforced: MathModelAgent's ``max_chat_turns``."""
    min_gain: float = 0.05
    """Smallest share of the tokens that a compaction has to save, or it is refused (opencode's
    stall guard); one that saves nothing is always refused."""
    fallback: tuple[str, ...] = LADDER
    """Fallbacks if the summarizer fails or its summary saves too little: a subset of ``reduce``,
    ``slice`` and ``last``, in this order."""
    repair: str | None = None
    """The repair that a compaction records: ``"drop"``, ``"synthesize"``, or None, which leaves
    repair to each context as it is rendered. See ``Session.repair``."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            msg = f"policy name: expected a non-empty str, got {self.name!r}"
            raise InvalidOptionError(msg)
        object.__setattr__(self, "stages", _tuple_of("stages", self.stages, Stage))
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            msg = f"stages: expected at least one, with names of their own; got {names}"
            raise InvalidOptionError(msg)
        checked_optional_int("window_tokens", self.window_tokens, least=1)
        checked_optional_int("max_turns", self.max_turns, least=1)
        checked_share("min_gain", self.min_gain)
        object.__setattr__(self, "fallback", _listed("fallback", self.fallback))
        if list(self.fallback) != [rung for rung in LADDER if rung in self.fallback]:
            msg = f"fallback: expected some of {LADDER} in this order, got {self.fallback}"
            raise InvalidOptionError(msg)
        if self.repair not in (None, "drop", "synthesize"):
            msg = f"repair: expected 'drop', 'synthesize' or None, got {self.repair!r}"
            raise InvalidOptionError(msg)
        for stage in self.stages:
            fractions = [trigger.fraction for trigger in stage.triggers]
            fractions.append(None if stage.keep is None else stage.keep.fraction)
            if self.window_tokens is None and any(part is not None for part in fractions):
                msg = f"stage {stage.name!r} takes fractions of the window: give window_tokens="
                raise InvalidOptionError(msg)

    def due(self, pressure: Pressure) -> Stage | None:
        """The heaviest due stage; None if none is due.

        None while the last item is a tool result, which the model has yet to see.
        """
        return next(iter(self.all_due(pressure)), None)

    def all_due(self, pressure: Pressure) -> tuple[Stage, ...]:
        """The due stages, heaviest first; none while the last item is a tool result."""
        if pressure.waiting:
            return ()
        return tuple(
            stage
            for stage in reversed(self.stages)
            if any(trigger.is_due(pressure, self.window_tokens) for trigger in stage.triggers)
        )

    def stage(self, name: str) -> Stage:
        """The stage of that name.

        Raises:
            InvalidOptionError: the policy has no such stage.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        msg = f"stage: policy {self.name!r} has {names}; got {name!r}"
        raise InvalidOptionError(msg)

    def with_keep(self, **given: int | None) -> CompactionPolicy:
        """The policy with these suffix limits of ``Keep`` in its folding stages, and no others.

        At least one item is kept. None of them: the policy itself.
        """
        wanted: dict[str, int | None] = {
            name: value for name, value in given.items() if value is not None
        }
        if not wanted:
            return self
        wanted = {**dict.fromkeys(_SUFFIX_LIMITS), "last_items": 1, **wanted}
        stages = tuple(
            stage if stage.keep is None else _kept(stage, wanted) for stage in self.stages
        )
        return replace(self, stages=stages)


def _kept(stage: Stage, wanted: dict[str, Any]) -> Stage:
    """The stage with these ``Keep`` options replaced.

    A caller's explicit numbers are not checked against the triggers.
    """
    assert stage.keep is not None  # noqa: S101 - checked by the caller
    made = replace(stage, keep=replace(stage.keep, **wanted), triggers=())
    object.__setattr__(made, "triggers", stage.triggers)
    return made
