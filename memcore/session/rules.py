"""When an agent is stuck: rules as data, and what they see of a history, one item at a time.

What is looked at costs the same for every item, however long the history is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.model import Item, ItemKind
from memcore.options import checked_bool, checked_int

__all__ = ["RULES", "Cause", "LadderRules", "Watch", "checked_rules"]

RULES: Final = (
    "parse_failed",
    "reflection_limit",
    "low_confidence",
    "high_risk",
    "tool_failures",
    "failed",
)
"""Which rules there are; ``failed``: a step raised an error."""
_PARSE_FAILED: Final = "parse_failed"
_ANEW: Final = frozenset(("user_input", "final", "hitl"))
"""Types of items behind which reflections are counted anew."""
_RISK_FIELDS: Final = ("severity", "risk", "level")
_CODES: Final = ("code", "error_code", "error", "reason")
_SAID_CHARS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRules:
    """When a step has failed though nothing was raised. None turns a rule off.

    Events are read as they are recorded: ``error`` with a ``code`` that ends in ``parse_failed``;
    ``reflection`` with ``pass`` (or ``pass_``), ``confidence`` and ``issues``, each a text or an
    object with a ``severity`` (``risk``, ``level``); results of tools by their envelope.

    Raises:
        InvalidOptionError: a field is of a wrong type or out of range.
    """

    parse_failed: bool = True
    reflections_max: int | None = 3
    """So many reflections in a row that do not pass."""
    confidence_min: float | None = 0.5
    risks: tuple[str, ...] = ("high", "critical")
    """Severities of issues that a person has to see, or issues that are named so."""
    tool_failures_max: int | None = 3
    """So many failures of the same tool in a row."""

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
        risks = self.risks
        if isinstance(risks, str) or not all(isinstance(risk, str) for risk in risks):
            msg = f"risks: expected names, got {risks!r:.40}"
            raise InvalidOptionError(msg)
        object.__setattr__(self, "risks", tuple(risk.casefold() for risk in risks))


def checked_rules(given: object) -> LadderRules:
    """The rules that an argument stands for: None, LadderRules or a mapping of their fields.

    Raises:
        InvalidOptionError: it is something else, or a field is none.
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


@dataclass(frozen=True, slots=True)
class Cause:
    """A rule that applies."""

    rule: str
    """One of ``RULES``."""
    reason: str
    seq: int | None = None
    """The item by which it does."""


@dataclass(slots=True)
class Watch:
    """What the rules remember of the items that they saw."""

    rules: LadderRules
    reflections: int = 0
    """Reflections in a row that did not pass."""
    failures: dict[str, int] = field(default_factory=dict)
    """By tool the failures in a row."""

    def copy(self) -> Watch:
        """Another one that remembers the same."""
        return Watch(self.rules, self.reflections, dict(self.failures))

    def see_all(self, items: Iterable[Item]) -> list[Cause]:
        """What applies because of these items, in their order."""
        return [cause for item in items for cause in self.see(item)]

    def see(self, item: Item) -> list[Cause]:
        """What applies because of the next item."""
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
