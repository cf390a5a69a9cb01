"""Validation of a message list against the form and the rules of its provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from memcore._fast import classify
from memcore.model import ItemKind, Message, Violation
from memcore.wire.form import form_faults
from memcore.wire.message import BY_NAME, FLAG_MODEL, Binding, CallSlot, WireItem, bind
from memcore.wire.policy import PairPolicy

__all__ = [
    "find_violations",
    "pair_violations",
]


_FAULTS_MAX: Final = 20
"""Most faults of form that are listed of one message."""


def find_violations(
    messages: Sequence[Message], policy: PairPolicy, *, strict: bool = False
) -> list[Violation]:
    """Find all violations, in order of position.

    A call followed by nothing but results is open: a violation only if ``strict``.
    """
    found = [
        Violation(at, None, "form", fault)
        for at, message in enumerate(messages)
        for fault in islice(form_faults(message, policy.wire), _FAULTS_MAX)
    ]
    found += pair_violations(messages, policy, strict=strict)
    found.sort(key=lambda violation: violation.position)
    return found


def pair_violations(
    messages: Sequence[Message], policy: PairPolicy, *, strict: bool = False
) -> list[Violation]:
    """Find the violations of all rules but the form, as ``find_violations``."""
    binding = bind(WireItem(at, message) for at, message in enumerate(messages))
    found = [*_orphans(binding, policy)]
    if strict:
        found += _open_calls(binding)
    if policy.repairs:
        found += _strays(binding)
        found += _calls(binding, policy)
        found += _ids(binding, policy)
        found += _reasoning(binding, policy)
        found += _start(binding, policy)
        if policy.adjacency == "next_message":
            found += _results_first(messages, binding)
            found += _repeated_blocks(messages, binding)
    found.sort(key=lambda violation: violation.position)
    return found


def _orphans(binding: Binding, policy: PairPolicy) -> Iterator[Violation]:
    for at, answers in enumerate(binding.answers):
        for key, slot in answers:
            if slot is None:
                yield Violation(
                    at, key[1], "orphan_result", f"no call with id {key[1]!r} stands before it"
                )
        if binding.is_result(at) and not answers and not policy.standalone_results:
            yield Violation(at, None, "orphan_result", "the result names no call")


def _strays(binding: Binding) -> Iterator[Violation]:
    for at, slot in binding.references:
        if slot is None:
            reason = "the call that the item refers to does not stand before it"
            yield Violation(at, None, "missing_reference", reason)


def _calls(binding: Binding, policy: PairPolicy) -> Iterator[Violation]:
    ends = binding.ends()
    for at, slots in enumerate(binding.calls):
        for slot in slots:
            if slot.is_server:
                continue
            if not slot.results:
                if ends.passed(slot):
                    reason = f"call {slot.key[1]!r} is not answered although the list goes on"
                    yield Violation(at, slot.key[1], "unanswered_call", reason)
                continue
            for extra in slot.results[1:]:
                reason = f"call {slot.key[1]!r} was answered before"
                yield Violation(extra, slot.key[1], "duplicate_result", reason)
            if policy.adjacency != "any_later":
                yield from _adjacency(binding, policy, slot)


def _open_calls(binding: Binding) -> Iterator[Violation]:
    ends = binding.ends()
    for at, slots in enumerate(binding.calls):
        for slot in slots:
            if not slot.results and not slot.is_server and not ends.passed(slot):
                reason = f"call {slot.key[1]!r} is still open at the end of the list"
                yield Violation(at, slot.key[1], "open_call", reason)


def _adjacency(binding: Binding, policy: PairPolicy, slot: CallSlot) -> Iterator[Violation]:
    result = slot.results[0]
    if policy.adjacency == "next_message":
        if result != slot.at + 1:
            reason = f"the result of {slot.key[1]!r} must stand in the message behind its call"
            yield Violation(result, slot.key[1], "result_not_adjacent", reason)
        return
    siblings = {at for other in binding.calls[slot.at] for at in other.results}
    if any(at not in siblings for at in range(slot.at + 1, result)):
        reason = f"the result of {slot.key[1]!r} must directly follow the message with its call"
        yield Violation(result, slot.key[1], "result_not_adjacent", reason)


def _ids(binding: Binding, policy: PairPolicy) -> Iterator[Violation]:
    seen: set[tuple[int, str]] = set()
    for at, slots in enumerate(binding.calls):
        for slot in slots:
            cls, text = slot.key
            if cls & BY_NAME:
                continue
            if policy.unique_ids and slot.key in seen:
                yield Violation(at, text, "duplicate_id", f"call id {text!r} is used twice")
            seen.add(slot.key)
            if policy.id_chars_max is not None and len(text) > policy.id_chars_max:
                reason = (
                    f"call id {text[:16]!r}… has {len(text)} of {policy.id_chars_max} characters"
                )
                yield Violation(at, text, "id_too_long", reason)


def _reasoning(binding: Binding, policy: PairPolicy) -> Iterator[Violation]:
    if policy.wire != "responses":
        return
    followed = False
    for at in range(len(binding.kinds) - 1, -1, -1):
        if binding.kinds[at] != ItemKind.REASONING:
            followed = bool(binding.flags[at] & FLAG_MODEL)
        elif not followed:
            reason = "the reasoning item lacks the model item that must follow it"
            yield Violation(at, None, "dangling_reasoning", reason)


def _start(binding: Binding, policy: PairPolicy) -> Iterator[Violation]:
    if not policy.must_start:
        return
    for at, kind in enumerate(binding.kinds):
        if kind == ItemKind.SYSTEM:
            continue
        if ItemKind(kind) not in policy.starts and kind != ItemKind.RESULT:
            yield Violation(at, None, "start", "the first message must come from the user")
        return


def _results_first(messages: Sequence[Message], binding: Binding) -> Iterator[Violation]:
    for at, message in enumerate(messages):
        content = message.get("content")
        if binding.kinds[at] != ItemKind.RESULT or not isinstance(content, list):
            continue
        other = False
        for block in content:
            is_result = isinstance(block, dict) and block.get("type") == "tool_result"
            if is_result and other:
                reason = "tool_result blocks must stand before all other blocks of their message"
                yield Violation(at, str(block.get("tool_use_id")), "results_first", reason)
                break
            other = other or not is_result


def _repeated_blocks(messages: Sequence[Message], binding: Binding) -> Iterator[Violation]:
    """Yield repeated result blocks for one id in a message; ``bind`` counts them as one answer."""
    for at, message in enumerate(messages):
        field = "parts" if isinstance(message.get("parts"), list) else "content"
        content = message.get(field)
        if binding.kinds[at] != ItemKind.RESULT or not isinstance(content, list):
            continue
        seen: set[tuple[int, str]] = set()
        for block in content:
            for key in classify({"role": "user", field: [block]})[2]:
                if key in seen and not key[0] & BY_NAME:
                    reason = f"call {key[1]!r} is answered twice in one message"
                    yield Violation(at, key[1], "duplicate_result", reason)
                seen.add(key)
