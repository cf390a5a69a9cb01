"""Recursive summaries: a long source is summarized in parts, then the parts are merged."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from memcore._fast import pack_facts
from memcore.compaction.summarizers import checked_summary
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import CALLS_PER_ITEM_MAX
from memcore.model import Message, Summarizer, SummaryRequest
from memcore.options import checked_int, checked_optional_int
from memcore.tokens import TokenCounter, get_counter
from memcore.tokens.message import json_text
from memcore.wire import get_policy

__all__ = [
    "Recursive",
    "split",
]


FANOUT: Final = 8
LEVELS_MAX: Final = 8
INPUT_TOKENS_MAX: Final = 32_000
_SEED: Final = bytes(16)

Steps = Generator[SummaryRequest, str, str]
"""Requests on their way out, summaries on their way in, the last summary at the end."""


@dataclass(frozen=True, slots=True)
class Recursive:
    """A summarizer that gives another one only as much at a time as it can take.

    A history that fits is passed on whole. Longer ones are split at safe cuts, so that no call is
    parted from its result, and each part is summarized (level 0); then groups of up to ``fanout``
    summaries are (level 1 and above), until one is left. The previous summary joins the last of
    these calls.

    The calls are sequential; if the inner summarizer returns an awaitable, so does this one. An
    error of the inner one is raised.
    """

    summarizer: Summarizer
    input_tokens_max: int | None = None
    """The most tokens for one call; None: the summarizer's own limit, or 32,000 if it has none."""
    fold_items: int | None = None
    """At most so many items a part; None: as many as fit."""
    fanout: int = FANOUT
    """Summaries that one call merges, if they fit; two at least."""
    levels_max: int = LEVELS_MAX
    """The last level merges all that is left, whether it fits or not."""
    counter: str | TokenCounter | None = None
    """Counts the summaries, and the items if the summarizer does not measure them itself."""

    def __post_init__(self) -> None:
        if not callable(self.summarizer):
            msg = f"summarizer: expected a callable, got {type(self.summarizer).__name__}"
            raise InvalidOptionError(msg)
        checked_optional_int("input_tokens_max", self.input_tokens_max, least=1)
        checked_optional_int("fold_items", self.fold_items, least=1)
        checked_int("fanout", self.fanout, least=2)
        checked_int("levels_max", self.levels_max, least=1)
        get_counter(self.counter)

    def __call__(self, request: SummaryRequest, /) -> str | Awaitable[str]:
        """The summary.

        Raises:
            SummarizerError: the inner summarizer returned no text.
            Exception: as the inner summarizer raised it.
        """
        steps = self._steps(request)
        asked = next(steps)
        while True:
            answer = self.summarizer(asked)
            if inspect.isawaitable(answer):
                return self._later(steps, answer)
            try:
                asked = steps.send(self._checked(answer))
            except StopIteration as done:
                return str(done.value)

    async def _later(self, steps: Steps, answer: Any) -> str:
        while True:
            if inspect.isawaitable(answer):
                answer = await answer
            try:
                asked = steps.send(self._checked(answer))
            except StopIteration as done:
                return str(done.value)
            answer = self.summarizer(asked)

    def _checked(self, answer: Any) -> str:
        return checked_summary(type(self.summarizer).__name__, answer)

    def _steps(self, request: SummaryRequest) -> Steps:
        budget, previous = self._budget(), request.previous_summary
        counter = get_counter(self.counter)
        room = budget - (counter.count(previous) if previous else 0)
        parts = self._parts(request.messages, max(room, budget // 2))
        if len(parts) <= 1:
            return (yield request)
        found = []
        for part in parts:
            found += [(yield replace(request, messages=part, previous_summary=None))]
        level = request.level
        while len(found) > 1:
            level += 1
            last = level - request.level >= self.levels_max
            groups = [found] if last else self._groups(found, budget, counter)
            found = []
            for group in groups:
                if len(group) == 1 and len(groups) > 1:
                    found += group
                    continue
                found.append(
                    (yield replace(
                        request,
                        messages=tuple({"role": "user", "content": text} for text in group),
                        previous_summary=previous if len(groups) == 1 else None,
                        level=level,
                    ))
                )  # fmt: skip
        return found[0]

    def _budget(self) -> int:
        own = getattr(self.summarizer, "input_tokens_max", None)
        return self.input_tokens_max or (own if isinstance(own, int) else INPUT_TOKENS_MAX)

    def _parts(self, messages: Sequence[Message], budget: int) -> list[tuple[Message, ...]]:
        measure = getattr(self.summarizer, "measure", None)
        if callable(measure):
            tokens: list[int] = list(measure(messages))
        else:
            by = get_counter(self.counter)
            tokens = [by.count_message(each, json_text(each).encode(errors="surrogatepass"))
                      for each in messages]  # fmt: skip
        cuts = split(messages, tokens, budget, items_max=self.fold_items)
        ends = (*cuts[1:], len(messages))
        return [tuple(messages[start:end]) for start, end in zip(cuts, ends, strict=True)]

    def _groups(self, texts: list[str], budget: int, counter: TokenCounter) -> list[list[str]]:
        """Group neighbours to merge: up to ``fanout`` that fit.

        Two together even if they do not fit.
        """
        groups: list[list[str]] = []
        used = 0
        for text in texts:
            tokens = counter.count(text)
            fits = used + tokens <= budget or (groups and len(groups[-1]) < 2)  # noqa: PLR2004
            if groups and fits and len(groups[-1]) < self.fanout:
                groups[-1].append(text)
                used += tokens
            else:
                groups.append([text])
                used = tokens
        return groups


def split(
    messages: Sequence[Message],
    tokens: Sequence[int],
    budget_tokens: int,
    *,
    items_max: int | None = None,
) -> list[int]:
    """Split messages into parts within a budget: the start of each part, 0 first.

    ``tokens`` are those of each message. Parts start at safe cuts, which split no pair; a message
    above the budget is a part of its own. Where there is no safe cut within the budget (a call that
    is answered very late), the part ends at the last message that fits: parts are read, never sent
    as a history, and losing items would be worse.
    """
    safe = _safe_cuts(messages)
    starts = [0]
    used, latest = 0, 0
    for at, cost in enumerate(tokens):
        if at in safe and at > starts[-1]:
            latest = at
        while at > starts[-1] and (used + cost > budget_tokens or at - starts[-1] == items_max):
            cut = latest if latest > starts[-1] else at
            starts.append(cut)
            used = sum(tokens[cut:at])
        used += cost
    return starts


def _safe_cuts(messages: Sequence[Message]) -> set[int]:
    """The positions that part no call from its result, and no reasoning from what follows it."""
    ledger = get_policy("openai_responses").new_ledger(0, expect_items=len(messages))
    for message in messages:
        facts = pack_facts(message, _SEED)
        if facts is None:
            msg = f"a message has more than {CALLS_PER_ITEM_MAX} calls or results"
            raise InvalidItemError(msg)
        ledger.push(facts, 0)
    return set(ledger.safe_cuts())
