"""The specification of memcore._fast in plain Python: slow, obvious, written from the reference.

``OracleLedger`` answers every question of ``_fast.Ledger`` from definitions, by brute force.
``seed_rule_cut`` is the plain rule that memcore was asked to match. What an item is, and what is
illegal in a list of messages, is part of ``memcore.testing``: ``facts`` and ``legality``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from memcore.testing.facts import (
    ABANDON,
    APPLY_PATCH,
    ASSISTANT,
    BY_NAME,
    CALL,
    COMPUTER,
    CUSTOM,
    EVENT,
    FUNCTION,
    LOCAL_SHELL,
    MCP_APPROVAL,
    MIXED,
    MODEL,
    OPAQUE,
    PROGRAM,
    REASONING,
    RESULT,
    SECOND,
    SELF_CONTAINED,
    SERVER,
    SHELL,
    SYSTEM,
    THINKING,
    TOOL_SEARCH,
    TURN,
    USER,
    Event,
    Facts,
    Key,
    classify,
    dicts_at,
    plain,
)
from memcore.testing.legality import POLICIES
from memcore.testing.legality import breaches as brute_force_violations

__all__ = [
    "ABANDON",
    "APPLY_PATCH",
    "ASSISTANT",
    "BY_NAME",
    "CALL",
    "COMPUTER",
    "CUSTOM",
    "EVENT",
    "FUNCTION",
    "LOCAL_SHELL",
    "MCP_APPROVAL",
    "MIXED",
    "MODEL",
    "OPAQUE",
    "POLICIES",
    "PROGRAM",
    "REASONING",
    "RESULT",
    "SECOND",
    "SELF_CONTAINED",
    "SERVER",
    "SHELL",
    "SYSTEM",
    "THINKING",
    "TOOL_SEARCH",
    "TURN",
    "USER",
    "Event",
    "Facts",
    "Key",
    "OracleLedger",
    "brute_force_violations",
    "classify",
    "dicts_at",
    "plain",
    "seed_rule_cut",
]

# --- the ledger -----------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a history."""

    names: list[Key]
    opener: int
    run: int
    ends: list[int] = field(default_factory=list)

    @property
    def closer(self) -> int | None:
        """The position at which it was answered or given up first."""
        return self.ends[0] if self.ends else None


class OracleLedger:
    """Answers every question of ``_fast.Ledger`` from the list of all items.

    Definitions:

    * An event is never shown. A RESULT without other content that answers no call at all is an
      orphan and dropped; one without any key only if ``orphan & 2``.
    * A result answers the latest call with its (class, id), open or closed. By name, it answers
      the first open call of that name in the latest run of adjacent shown calling items that calls
      the name, or else the latest call of that name.
    * An event gives up the call that a result would answer, if that is open, else the newest open
      one with the key; if none is open, it gives up nothing.
    * ``low(r)``: the least of r, the calls that r answers or refers to, and what glue adds. The
      low of an event is itself. With ``orphan & 1`` the low
      of an item with an orphan is -1.
    * Glue 1: an item of the model behind a reasoning item, with only items of the model between
      them, needs the shown item before it; so does a CALL behind a CALL.
    * Glue 2: what continues a thinking tool loop needs its start. A loop starts at an item that
      thinks and calls, unless one runs; it goes on behind results and behind items of the model
      that call, and it ends with the first other item, which still belongs to it if the model
      wrote it.
    * A cut at i is safe iff low(r) >= i for all r >= i. The end is a safe place, but no cut.
    * Orphans and events count no tokens (with ``orphan & 1`` orphans count); an event that gives up
      open calls counts ``open_tokens`` for each, because each may get a synthetic result.
    """

    def __init__(
        self, *, start_mask: int = 0, glue: int = 0, orphan: int = 0, open_tokens: int = 0
    ) -> None:
        self.start_mask = start_mask
        self.glue = glue
        self.orphan = orphan
        self.open_tokens = open_tokens
        self.items: list[Facts] = []
        self.counts: list[int] = []  # as given
        self.calls: list[Call] = []
        self.lows: list[int] = []
        self.dropped: list[bool] = []
        self.sums: list[int] = []  # as counted
        self.unbound = 0

    def __len__(self) -> int:
        return len(self.items)

    def push(self, item: dict[str, Any] | Event | Facts, tokens: int) -> int:
        """Append; returns how many results of the item are orphans."""
        if isinstance(item, Event):
            item = Facts(EVENT, closes=item.abandons, flags=ABANDON if item.abandons else 0)
        facts = item if isinstance(item, Facts) else classify(item)
        self.items.append(facts)
        self.counts.append(tokens)
        return self._bind(len(self.items) - 1)

    def truncate(self, length: int) -> None:
        """Forget the positions from length on; everything else is found out again."""
        kept = list(zip(self.items[:length], self.counts[:length], strict=True))
        self.__init__(  # type: ignore[misc]
            start_mask=self.start_mask,
            glue=self.glue,
            orphan=self.orphan,
            open_tokens=self.open_tokens,
        )
        for item, tokens in kept:
            self.push(item, tokens)

    # --- binding

    def _shown(self, r: int) -> bool:
        return self.items[r].kind != EVENT and not self.dropped[r]

    def _shown_before(self, r: int) -> Iterator[int]:
        return (q for q in range(r - 1, -1, -1) if self._shown(q))

    def _run(self, r: int) -> int:
        """Where the run of adjacent shown calling items that r continues starts."""
        start = r
        for q in self._shown_before(r):
            if not self.items[q].opens:
                break
            start = q
        return start

    def _answered(self, key: Key) -> Call | None:
        cls, name = key[0] & ~SECOND, key[1]
        same = [call for call in self.calls if (cls, name) in call.names]
        if not same:
            return None
        if cls & BY_NAME:
            queue = [call for call in same if call.run == same[-1].run and not call.ends]
            return queue[0] if queue else same[-1]
        return same[-1]

    def _given_up(self, key: Key) -> Call | None:
        call = self._answered(key)
        if call is None or not call.ends:
            return call
        key = (key[0] & ~SECOND, key[1])
        return next((c for c in reversed(self.calls) if key in c.names and not c.ends), None)

    def _bind(self, r: int) -> int:
        item = self.items[r]
        low, orphans, given_up = r, 0, 0
        for key in item.closes:
            call = self._given_up(key) if item.kind == EVENT else self._answered(key)
            if call is None:
                self.unbound += 1
                orphans += item.kind != EVENT and not key[0] & SECOND
                continue
            if item.kind != EVENT:
                low = min(low, call.opener)
            if not key[0] & SECOND:
                given_up += item.kind == EVENT and not call.ends
                call.ends.append(r)
        if item.kind == RESULT and not item.closes and self.orphan & 2:
            orphans = 1
        drop = item.kind == RESULT and not item.flags & MIXED
        drop = drop and orphans > 0 and orphans >= len(item.closes)
        if orphans and self.orphan & 1:
            low = -1
        self.dropped.append(drop)
        run = self._run(r)
        for key in item.opens:
            cls, name = key[0] & ~SECOND, key[1]
            if key[0] & SECOND and self.calls and self.calls[-1].opener == r:
                self.calls[-1].names.append((cls, name))
            else:
                self.calls.append(Call([(cls, name)], r, run))
        tokens = self.counts[r]
        if item.kind == EVENT:
            tokens = given_up * self.open_tokens
        elif drop and not self.orphan & 1:
            tokens = 0
        self.sums.append(tokens)
        self.lows.append(min(low, self._glued(r)) if self._shown(r) else low)
        return orphans

    def _glued(self, r: int) -> int:
        low, item = r, self.items[r]
        if self.glue & 1 and item.flags & MODEL:
            before = []
            for q in self._shown_before(r):
                if not self.items[q].flags & MODEL:
                    break
                before.append(q)
            if any(self.items[q].kind == REASONING for q in before):
                low = before[0]
            if item.kind == CALL and before and self.items[before[0]].kind == CALL:
                low = before[0]
        if self.glue & 2 and (item.flags & MODEL or item.kind == RESULT):
            for q in self._shown_before(r):
                kind, opens, _, flags = self.items[q]
                if not (opens if flags & MODEL else kind == RESULT):
                    break
                if opens and flags & THINKING:
                    low = min(low, q)
        return low

    # --- questions

    @property
    def tokens(self) -> int:
        """Tokens of everything."""
        return sum(self.sums)

    @property
    def open_count(self) -> int:
        """Calls without an end."""
        return sum(not call.ends for call in self.calls)

    @property
    def shown_count(self) -> int:
        """Items that are no events."""
        return self._shown_from(0)

    @property
    def turns(self) -> int:
        """Items of the user."""
        return sum(item.kind == USER for item in self.items)

    def _shown_from(self, i: int) -> int:
        return sum(item.kind != EVENT for item in self.items[i:])

    def is_safe(self, i: int) -> bool:
        """By the definition."""
        return 0 <= i <= len(self) and all(low >= i for low in self.lows[i:])

    def safe_cuts(self, *, starts: bool = False) -> list[int]:
        """All i that are safe, if asked only those at which a context may start."""
        return [
            i
            for i in range(len(self))
            if self.is_safe(i) and (not starts or self.start_mask >> self.items[i].kind & 1)
        ]

    def open_positions(self) -> list[int]:
        """Where the open calls are."""
        return [call.opener for call in self.calls if not call.ends]

    def open_calls(self) -> list[tuple[int, int]]:
        """Where the open calls are, and which of the calls of its item each one is."""
        return [
            (call.opener, sum(other.opener == call.opener for other in self.calls[:i]))
            for i, call in enumerate(self.calls)
            if not call.ends
        ]

    def cost(self, i: int) -> int:
        """The tokens of the suffix, and of a synthetic result for each unanswered call in it."""
        waiting = sum(i <= position < self._passed() for position in self.open_positions())
        return sum(self.sums[i:]) + self.open_tokens * waiting

    def _passed(self) -> int:
        """The last item behind which only results come, but for a run of CALLs before these."""
        items = [(r, item) for r, item in enumerate(self.items) if item.kind != EVENT]
        while items and items[-1][1].kind == RESULT and not items[-1][1].flags & MIXED:
            items.pop()
        while items and items[-1][1].kind == CALL:
            items.pop()
        return items[-1][0] if items else -1

    def cut_for_budget(self, budget: int, *, at_least: int = 0, starts: bool = True) -> int:
        """The first cut that is cheap enough."""
        cuts = self.safe_cuts(starts=starts)
        return next((i for i in cuts if i >= at_least and self.cost(i) <= budget), -1)

    def cut_keep_last(self, keep: int, *, starts: bool = False) -> int:
        """The last cut that keeps enough."""
        cuts = self.safe_cuts(starts=starts)
        return max((i for i in cuts if self._shown_from(i) >= keep), default=-1)

    def cut_at_most(self, position: int) -> int:
        """The last cut that does not lie behind position; the end lies at the end."""
        if position >= len(self):
            return len(self)
        return max((i for i in self.safe_cuts() if i <= position), default=-1)

    def sum_between(self, start: int, stop: int) -> int:
        """Tokens of a range."""
        return sum(self.sums[start:stop])

    def tokens_of(self, start: int, stop: int) -> list[int]:
        """Tokens of each position of a range."""
        return self.sums[start:stop]

    def first_of(self, kind: int) -> int:
        """The first position of a kind."""
        return next((i for i, item in enumerate(self.items) if item.kind == kind), -1)

    def last_of(self, kinds: int, count: int, *, at_least: int = 0) -> int:
        """The count-th last position of some kinds."""
        found = [i for i, item in enumerate(self.items) if kinds >> item.kind & 1 and i >= at_least]
        if count <= 0:
            return len(self)
        return found[-count] if len(found) >= count else min(max(at_least, 0), len(self))

    def count_of(self, kinds: int, start: int) -> int:
        """How many items of some kinds there are from a position on."""
        return sum(kinds >> item.kind & 1 for item in self.items[max(start, 0) :])

    @property
    def last_shown(self) -> int:
        """The last position that a context can show."""
        return max((i for i in range(len(self)) if self._shown(i)), default=-1)

    def kind_at(self, position: int) -> int:
        """The kind."""
        return self.items[position].kind

    def is_dropped(self, position: int) -> bool:
        """Whether it is an orphan."""
        return self.dropped[position]

    def leading(self, kind: int) -> int:
        """The length of the head up to the last of its items that has the kind, events aside."""
        head = 0
        for i, item in enumerate(self.items):
            if item.kind == kind:
                head = i + 1
            elif item.kind != EVENT:
                break
        return head

    def find_call(self, cls: int, name: str) -> tuple[int, list[int], bool] | None:
        """The call that a result with this key would answer now: opener, ends, still open."""
        call = self._answered((cls, name))
        return None if call is None else (call.opener, sorted(set(call.ends)), not call.ends)


# --- the plain rule -------------------------------------------------------------------------------


def seed_rule_cut(messages: list[dict[str, Any]]) -> int | None:
    """The preserve point of the plain rule; None where it would fall back to the last message.

    The greatest i that keeps three messages (all, if there are fewer) such that every tool message
    from i on that has an id finds an assistant message with that call between i and itself.
    """
    for i in range(len(messages) - min(3, len(messages)), -1, -1):
        if i < len(messages) and all(
            _has_its_call(messages, i, j) for j in range(i, len(messages))
        ):
            return i
    return None


def _has_its_call(messages: list[dict[str, Any]], i: int, j: int) -> bool:
    wanted = messages[j].get("tool_call_id")
    if messages[j].get("role") != "tool" or not isinstance(wanted, str) or not wanted:
        return True
    return any(
        call.get("id") == wanted
        for message in messages[i:j]
        if message.get("role") == "assistant"
        for call in dicts_at(message, "tool_calls")
    )
