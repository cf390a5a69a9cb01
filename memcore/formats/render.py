"""From log entries to a message list that the provider accepts. Pure and deterministic.

The log may hold results that came late, calls that were never answered and results that answer
nothing. Rendering hoists the first behind their call, answers the second synthetically and leaves
the third out; every such change is listed as a Repair. Nothing is invented while a call may still
be answered: calls of the last turn that nothing but results follows stay open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memcore._fast import classify
from memcore.formats.binding import (
    CLASS_PROGRAM,
    FLAG_MIXED,
    FLAG_MODEL,
    Binding,
    CallSlot,
    Entry,
    Key,
    bind,
)
from memcore.formats.policy import PairPolicy
from memcore.formats.rendered import Rendered
from memcore.formats.unique import rename_repeated_ids, shorten_ids
from memcore.formats.wire import BLOCK_SHAPES, shape_of, synthetic_results
from memcore.model import ItemKind, Message, Repair

__all__ = ["Rendered", "render"]


def render(entries: Sequence[Entry], policy: PairPolicy) -> Rendered:
    """The entries as a legal message list of the policy."""
    binding = bind(entries)
    if not policy.repairs:
        return _render_plain(entries, binding)
    binding.leave_out_strays()
    _supersede(binding)
    renderer = _Renderer(entries, binding, policy)
    if policy.adjacency == "any_later":
        renderer.render_anywhere()
    elif policy.adjacency == "behind":
        renderer.render_behind()
    else:
        renderer.render_next_message()
    if policy.unique_ids:
        rename_repeated_ids(renderer.out, entries)
    if policy.id_chars_max is not None and not policy.takes_ids(renderer.out.messages):
        shorten_ids(renderer.out, entries, policy.id_chars_max)
    return renderer.out


def _render_plain(entries: Sequence[Entry], binding: Binding) -> Rendered:
    """Everything but events and results without their call."""
    out = Rendered()
    for at, entry in enumerate(entries):
        answers = binding.answers[at]
        if answers and not any(slot for _, slot in answers) and binding.is_result(at):
            out.repairs.append(Repair("orphan", entry.seq, answers[0][0][1]))
        elif binding.is_shown(at):
            out.keep(entries, at)
    return out


def _supersede(binding: Binding) -> None:
    """Of several results for one call the newest stands."""
    for slots in binding.calls:
        for slot in slots:
            del slot.results[:-1]


class _Renderer:
    """One rendering pass."""

    def __init__(self, entries: Sequence[Entry], binding: Binding, policy: PairPolicy) -> None:
        self.entries = entries
        self.binding = binding
        self.policy = policy
        self.out = Rendered()
        self.ends = binding.ends()
        self._note_left_out()

    def _is_content(self, at: int) -> bool:
        """Whether the entry is something that must not come before the answers to open calls."""
        return self.binding.is_shown(at) and not self.binding.is_result(at)

    def _note(self, action: str, at: int, call_id: str | None = None) -> None:
        self.out.repairs.append(Repair(action, self.entries[at].seq, call_id))

    def _note_left_out(self) -> None:
        """Orphans, strays and results that a newer result of the same call replaces."""
        for at in sorted(self.binding.strays):
            self._note("orphan", at)
        for at, answers in enumerate(self.binding.answers):
            for key, slot in answers:
                if slot is None:
                    self._note("orphan", at, key[1])
                elif slot.results != [at]:
                    self._note("superseded", at, key[1])
            distinct = {key if slot is None else id(slot) for key, slot in answers}
            if answers and len(self._split(at)[0]) > len(distinct):
                self._note("superseded", at)  # of several blocks for one call the last stands
            unbound = self.binding.is_result(at) and not answers
            if unbound and not self.policy.standalone_results:
                self._note("orphan", at)

    def _missing(self, at: int) -> list[CallSlot]:
        """Calls of the entry that need a synthetic answer."""
        return [
            slot
            for slot in self.binding.calls[at]
            if not slot.results
            and not slot.is_server
            and (slot.abandoned or self.ends.passed(slot))
        ]

    def _synthesize(self, at: int, missing: list[CallSlot]) -> None:
        for slot in missing:
            self._note("synthesized", at, slot.key[1])
        for message in synthetic_results(self.entries[at].message, missing):
            self.out.write(message)

    def _results_of(self, at: int) -> list[int]:
        """Entries that answer calls of ``at``, in the order they came, each once."""
        found = {result for slot in self.binding.calls[at] for result in slot.results}
        return sorted(found)

    def _in_place(self, at: int, result: int, results: list[int]) -> bool:
        """Whether nothing but events and other results of ``at`` stands between the two."""
        return all(
            between in results or not self.binding.is_shown(between)
            for between in range(at + 1, result)
        )

    # --- results directly behind their call -------------------------------------------------------

    def render_behind(self) -> None:
        """OpenAI chat and LangChain."""
        for at in range(len(self.entries)):
            if self._is_content(at):
                self.out.keep(self.entries, at)
                if self.binding.calls[at]:
                    self._answer_behind(at)

    def _answer_behind(self, at: int) -> None:
        results = self._results_of(at)
        for result in results:
            if self._owner(result) != at:
                continue
            if not self._in_place(at, result, results):
                self._note("hoisted", result, self.binding.answers[result][0][0][1])
            self.out.keep(self.entries, result)
        missing = self._missing(at)
        if missing:
            self._synthesize(at, missing)

    def _owner(self, result: int) -> int:
        """The entry behind which a result is shown: the first whose call it still answers."""
        return min(
            slot.at
            for _, slot in self.binding.answers[result]
            if slot is not None and result in slot.results
        )

    # --- results anywhere behind their call -------------------------------------------------------

    def render_anywhere(self) -> None:
        """OpenAI Responses: outputs may come any time, reasoning stays with what follows it."""
        dangling = self._dangling_reasoning()
        waiting: list[int] = []
        for at in range(len(self.entries)):
            if not self.binding.is_shown(at) or (
                self.binding.is_result(at) and not self._stands(at)
            ):
                continue
            if not self.binding.flags[at] & FLAG_MODEL:
                self._answer(waiting)
            if at in dangling:
                self._note("reasoning", at)
                continue
            self.out.keep(self.entries, at)
            waiting.append(at)
        self._answer(waiting)

    def _stands(self, result: int) -> bool:
        answers = self.binding.answers[result]
        if not answers:
            return self.policy.standalone_results
        return any(slot is not None and result in slot.results for _, slot in answers)

    def _answer(self, waiting: list[int]) -> None:
        """Synthetic outputs behind the whole response, so that its items stay together."""
        missing = [(at, self._missing(at)) for at in waiting]
        for programs in (False, True):  # what a program called is answered before it ends
            for at, slots in missing:
                chosen = [slot for slot in slots if (slot.key[0] == CLASS_PROGRAM) is programs]
                if chosen:
                    self._synthesize(at, chosen)
        waiting.clear()

    def _dangling_reasoning(self) -> set[int]:
        """Reasoning items that no model item follows."""
        dangling = set()
        followed = False
        for at in range(len(self.entries) - 1, -1, -1):
            if not self.binding.is_shown(at) or (
                self.binding.is_result(at) and not self._stands(at)
            ):
                continue
            if self.binding.kinds[at] == ItemKind.REASONING and not followed:
                dangling.add(at)
                continue
            followed = bool(self.binding.flags[at] & FLAG_MODEL)
        return dangling

    # --- all results in the next message ----------------------------------------------------------

    def render_next_message(self) -> None:
        """Anthropic and Gemini: one user message answers all calls of the model's message."""
        whole: set[int] = set()
        for at in range(len(self.entries)):
            if not self.binding.is_shown(at) or at in whole:
                continue
            if self.binding.kinds[at] == ItemKind.RESULT:
                self._keep_rest(at)
                continue
            self.out.keep(self.entries, at)
            if not self.binding.calls[at]:
                continue
            if shape_of(self.entries[at].message) in BLOCK_SHAPES:
                self._answer_in_one(at, whole)
            else:
                self._answer_behind(at)

    def _keep_rest(self, at: int) -> None:
        """What a message with results holds beside them, where it stands."""
        if self.binding.flags[at] & FLAG_MIXED:
            message, rest = self.entries[at].message, self._split(at)[1]
            if rest:
                self.out.write({**message, self._field(message): rest})

    def _answer_in_one(self, at: int, whole: set[int]) -> None:
        results, missing = self._results_of(at), self._missing(at)
        if not results and not missing:
            return
        if not missing and len(results) == 1 and self._is_clean(at, results):
            self.out.keep(self.entries, results[0])
            whole.add(results[0])
            return
        blocks = []
        for result in results:
            if not self._in_place(at, result, results):
                self._note("hoisted", result, self.binding.answers[result][0][0][1])
            blocks += self._blocks_for(at, result)
        message = self.entries[at].message
        for slot in missing:
            self._note("synthesized", at, slot.key[1])
            answer = synthetic_results(message, [slot])[0]
            blocks += answer[self._field(answer)]
        if len(results) > 1:
            self._note("merged", at)
        self.out.write({"role": "user", self._field(message): blocks})

    def _is_clean(self, at: int, results: list[int]) -> bool:
        """Whether the one result message can be shown as it is."""
        result = results[0]
        owners = [slot for _, slot in self.binding.answers[result]]
        if any(slot is None or slot.at != at or slot.results != [result] for slot in owners):
            return False
        if not self._in_place(at, result, results):
            return False
        blocks, rest = self._split(result)
        message = self.entries[result].message
        return self._blocks_for(at, result) + rest == message[self._field(message)] and (
            bool(blocks) or not rest
        )

    def _blocks_for(self, at: int, result: int) -> list[Any]:
        """The result blocks of entry ``result`` that answer calls of entry ``at``.

        One a call: of several for the same call the last one stands.
        """
        field_name = self._field(self.entries[result].message)
        wanted: dict[Key, list[CallSlot | None]] = {}
        for key, slot in self.binding.answers[result]:
            wanted.setdefault(key, []).append(slot)
        found: list[Any] = []
        answered: list[CallSlot] = []
        for block in reversed(self._split(result)[0]):
            closes = classify({"role": "user", field_name: [block]})[2]
            slots = wanted.get(closes[0]) if closes else None
            slot = slots.pop() if slots else None
            if slot is None or slot.at != at or slot.results[-1:] != [result] or slot in answered:
                continue
            answered.append(slot)
            found.append(block)
        return found[::-1]

    def _field(self, message: Message) -> str:
        return "parts" if isinstance(message.get("parts"), list) else "content"

    def _split(self, at: int) -> tuple[list[Any], list[Any]]:
        """The result blocks of a message and its other blocks."""
        message = self.entries[at].message
        blocks: list[Any] = []
        rest: list[Any] = []
        content = message.get(self._field(message))
        for block in content if isinstance(content, list) else ():
            (blocks if _is_result_block(block) else rest).append(block)
        return blocks, rest


def _is_result_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    if block.get("type") == "tool_result":
        return True
    answer = block.get("functionResponse") or block.get("function_response")
    return isinstance(answer, dict)
