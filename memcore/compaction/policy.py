"""Compaction policies: when a session is compacted, what stays, and what becomes of the rest.

A policy is data: an ordered list of stages, light to heavy. A stage is due when one of its triggers
is; the heaviest stage that is due runs. It folds what its ``Keep`` does not keep into a summary (or
trims it), and masks parts of what stays by its reducers. The log is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from memcore.compaction.keeping import Keep
from memcore.compaction.reducer import Reducer
from memcore.compaction.trigger import Pressure, Trigger
from memcore.errors import InvalidOptionError
from memcore.options import checked_optional_int, checked_share

__all__ = ["CompactionPolicy", "Stage", "SummaryStyle"]

LADDER: Final = ("reduce", "slice", "last")
"""What serves when there is no summary to be had, first to last: masks instead of a fold, a short
suffix from a safe cut, the last item that is legal alone."""
LANGUAGES: Final = ("en", "zh")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryStyle:
    """What is asked of the summarizer."""

    max_tokens: int | None = None
    """The summary is to stay within these."""
    language: str | None = None
    """``"en"`` or ``"zh"``; None: that of the items."""
    instructions: str | None = None
    """What matters beside the usual: file paths for a coding agent, figures for an analysis."""

    def __post_init__(self) -> None:
        checked_optional_int("max_tokens", self.max_tokens, least=1)
        if self.language is not None and self.language not in LANGUAGES:
            msg = f"language: expected one of {', '.join(LANGUAGES)} or None; got {self.language!r}"
            raise InvalidOptionError(msg)
        if self.instructions is not None and not isinstance(self.instructions, str):
            msg = f"instructions: expected a str or None, got {type(self.instructions).__name__}"
            raise InvalidOptionError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One level of a policy."""

    name: str = "default"
    triggers: tuple[Trigger, ...] = ()
    """Due if any of them is; without any only when it is asked for by name."""
    keep: Keep | None = field(default_factory=Keep)
    """What stays as items. None: nothing is folded, only the reducers work."""
    reducers: tuple[Reducer, ...] = ()
    """Applied to what stays, in this order."""
    summary: SummaryStyle | None = field(default_factory=SummaryStyle)
    """None: what is folded is trimmed, though a summarizer is at hand."""

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
    """A stage that keeps all that makes it due would be due for ever.

    Raises:
        InvalidOptionError: it does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When to compact and what to keep; see ``memcore.compaction.presets`` for ready ones."""

    name: str = "custom"
    stages: tuple[Stage, ...] = (Stage(triggers=(Trigger(items=12),)),)
    """Light to heavy."""
    window_tokens: int | None = None
    """The model's window, of which fractions are taken."""
    max_turns: int | None = None
    """Turns (user items) of the whole history above which ``Pressure.turns_left`` is negative. It
    is reported, never acted on: MathModelAgent's ``max_chat_turns``."""
    min_gain: float = 0.05
    """A compaction that saves a smaller share of the tokens is refused (the stall guard of
    opencode); one that saves nothing always is."""
    fallback: tuple[str, ...] = LADDER
    """What serves when the summarizer fails or its summary saves too little: some of ``reduce``,
    ``slice`` and ``last``, in this order."""
    repair: str | None = None
    """How a compaction mends what stays: ``"drop"``, ``"synthesize"``, or None: contexts repair
    what they show, as always. See ``Session.repair``."""

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
        """The heaviest stage that is due, None if none is.

        None while the last item is a tool result: the model has yet to see it.
        """
        return next(iter(self.all_due(pressure)), None)

    def all_due(self, pressure: Pressure) -> tuple[Stage, ...]:
        """The stages that are due, heaviest first; none while the last item is a tool result."""
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
            InvalidOptionError: there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        msg = f"stage: policy {self.name!r} has {names}; got {name!r}"
        raise InvalidOptionError(msg)

    def with_keep(self, **given: int | None) -> CompactionPolicy:
        """The policy with other numbers in what its folding stages keep."""
        wanted = {name: value for name, value in given.items() if value is not None}
        if not wanted:
            return self
        stages = tuple(
            stage if stage.keep is None else _kept(stage, wanted) for stage in self.stages
        )
        return replace(self, stages=stages)


def _kept(stage: Stage, wanted: dict[str, Any]) -> Stage:
    """The stage with other numbers; explicit numbers of a call are not held to its triggers."""
    assert stage.keep is not None  # noqa: S101 - what the caller looked at
    made = replace(stage, keep=replace(stage.keep, **wanted), triggers=())
    object.__setattr__(made, "triggers", stage.triggers)
    return made
