"""Context building: safe cuts, fitting to a budget, and the messages that a model receives.

A context is the pins (the leading system items), the summary of the applicable view, the items that
the view keeps in addition, and the longest suffix from a safe cut that fits the budget. The cut is
chosen from the ledger alone; the selected items are then rendered legally and counted as rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from memcore._fast import Ledger, classify, pack_facts
from memcore.errors import (
    ContextOverflowError,
    HistoryViolationError,
    InvalidItemError,
)
from memcore.log import AnyLedger, count_message, new_ledger
from memcore.model import Context, Conversion, ItemKind, Message, Repair, Violation
from memcore.options import checked_int, counted, plain_message
from memcore.records import record
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import (
    PairPolicy,
    WireItem,
    format_policy,
    get_policy,
    lead_in_message,
    render,
    summary_message,
)

__all__ = [
    "CutRequest",
    "Parts",
    "Selection",
    "build",
    "choose",
    "convert",
    "fit",
    "overflow_error",
    "safe_cuts",
    "validate",
]


_ZERO_SEED = b"memcore-no-seed."
UNLIMITED = 2**62
_SHOWN = ~(1 << ItemKind.EVENT) & 0xFF
_RENDERED = ~(1 << ItemKind.RESULT) & _SHOWN


@record(slots=True)
class Parts:
    """Parts of a context, in display order."""

    pins: list[WireItem] = field(default_factory=list)
    kept: list[WireItem] = field(default_factory=list)
    """Items before the cut that the view keeps in addition to its summary."""
    suffix: list[WireItem] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens of each entry of ``pins``, ``kept`` and ``suffix``, concatenated."""
    summary: str | None = None
    summary_tokens: int | None = None
    """Tokens of the summary's message; None: not counted yet."""
    plain: list[Message] | None = None
    """Replaces ``suffix`` when it is known to need no repair."""
    altered: bool = False
    """True if masks of repairs or imports invalidate what the ledger knows of the suffix."""


class Cut(NamedTuple):
    """Position of a cut; with ``lead_in``, the fixed user line precedes the suffix."""

    cut: int
    lead_in: bool
    fits: bool = True
    """True if it fits by the ledger's upper bound; otherwise its rendered size decides."""
    last: bool = False
    """True if there is no smaller legal suffix."""
    limited_by: str | None = None
    """Reason why the suffix does not begin earlier (see ``Context.limited_by``); None: no limit."""


def checked_budget(budget_tokens: object, reserve_tokens: object) -> int:
    """Return the number of tokens that a context may use.

    Raises:
        InvalidOptionError: the budget is neither None nor a positive int, or the reserve is not an
            int of at least 0.
    """
    reserve = 0
    if type(reserve_tokens) is not int or reserve_tokens:
        reserve = checked_int("reserve_tokens", reserve_tokens)
    if budget_tokens is None:
        return UNLIMITED
    budget = budget_tokens
    if type(budget) is not int or budget < 1:
        budget = checked_int("budget_tokens", budget_tokens, least=1)
    return max(min(budget - reserve, UNLIMITED), -UNLIMITED)


class CutRequest(NamedTuple):
    """Constraints on the choice of a cut."""

    budget: int
    fixed_tokens: int
    """Tokens of pins, kept items and summary together."""
    first: int
    """The first position that is neither pinned nor covered by the summary."""
    summary: str | None
    uncut: bool = True
    """True if a suffix from ``first`` on omits nothing."""
    at_least: int = 0
    summary_tokens: int | None = None
    """Tokens of the summary's message; None: not counted yet."""


class Selection(NamedTuple):
    """A chosen cut and the material selected from the history."""

    material: Parts
    choice: Cut
    policy: PairPolicy
    counter: TokenCounter
    cut_seq: int
    omitted: int
    open_calls: int
    generation: int = 0
    """Changes when the history is cut or replaced, which invalidates positions."""
    budget: int = UNLIMITED
    """Tokens, by the counter, that the context may use."""
    folded: bool = False
    """True if a view covers the omitted items."""


def choose(ledger: AnyLedger, policy: PairPolicy, counter: TokenCounter, demand: CutRequest) -> Cut:
    """Choose the cut.

    After a summary the suffix may start anywhere. Without one, the policy's starts are preferred,
    and any other start costs a lead-in line. The ledger's costs are upper bounds: if nothing fits
    by them, the candidate for the smallest context is chosen anyway, and its rendered size decides.
    """
    end, first = len(ledger), demand.first
    room = demand.budget - demand.fixed_tokens
    if first > ledger.last_shown:
        return Cut(min(first, end), lead_in=False, fits=False, last=True)
    led_in = demand.summary is not None
    at_least = max(demand.at_least, first)
    whole_is_legal = demand.uncut or ledger.is_safe(first)
    if at_least == first and whole_is_legal and ledger.cost(first) <= room:
        whole = choose_whole(ledger, policy, counter, demand)
        if whole is not None:
            return whole
    if not led_in:
        cut = ledger.cut_for_budget(room, at_least=at_least)
        if cut >= 0:
            limit = _limit(ledger, cut, room, at_least=at_least, starts=True)
            return Cut(cut, lead_in=False, limited_by=limit)
    lead_in = 0 if led_in else lead_in_cost(policy, counter)
    cut = ledger.cut_for_budget(room - lead_in, at_least=at_least, starts=False)
    if 0 <= cut <= ledger.last_shown:
        limit = _limit(ledger, cut, room, at_least=at_least, starts=False)
        return Cut(cut, lead_in=not led_in, limited_by=limit)
    return _smallest(ledger, policy, demand, lead_in=lead_in, whole_is_legal=whole_is_legal)


def _limit(ledger: AnyLedger, cut: int, room: int, *, at_least: int, starts: bool) -> str:
    """Return the reason why the suffix does not begin earlier: see ``Context.limited_by``."""
    if 0 <= ledger.cut_for_budget(room, at_least=at_least, starts=False) < cut:
        return "start rule"  # another start fits, or would without its lead-in line
    before = ledger.cut_keep_last(ledger.count_of(_SHOWN, cut) + 1, starts=starts)
    if before >= at_least and ledger.sum_between(before, len(ledger)) <= room:
        return "open calls"
    return "budget"


def choose_whole(
    ledger: AnyLedger, policy: PairPolicy, counter: TokenCounter, demand: CutRequest
) -> Cut | None:
    """Cut at ``first``, with a lead-in if the policy requires one; None if it does not fit."""
    odd = (
        policy.must_start
        and demand.summary is None
        and not _may_start(ledger, policy, demand.first)
    )
    cost = ledger.cost(demand.first) + (lead_in_cost(policy, counter) if odd else 0)
    fits = cost <= demand.budget - demand.fixed_tokens
    return Cut(demand.first, lead_in=odd) if fits else None


def _smallest(
    ledger: AnyLedger, policy: PairPolicy, demand: CutRequest, *, lead_in: int, whole_is_legal: bool
) -> Cut:
    """Return the cut whose suffix may be the smallest legal context, at ``at_least`` or later.

    There are two candidates: the latest suffix that needs no lead-in message, and a later one that
    needs it. An earlier suffix holds more items and thus more tokens, unless the lead-in message
    outweighs the few items in between: each item other than a result renders to a token or more.
    """
    first, led_in = demand.first, demand.summary is not None
    found: list[tuple[int, bool]] = []
    if whole_is_legal:
        odd = policy.must_start and not led_in and not _may_start(ledger, policy, first)
        found.append((first, odd))
    start = ledger.cut_keep_last(0, starts=True)
    if start >= first:
        found.append((start, False))
    latest = ledger.cut_at_most(ledger.last_shown)
    if latest >= first:
        found.append((latest, not led_in and (latest, False) not in found))
    if not found:  # no cut is safe: take everything
        return Cut(first, lead_in=False, fits=False, last=True)
    plain = [cut for cut, odd in found if not odd]
    cut, odd = max(found)
    if odd and plain and demand.at_least <= max(plain):
        between = ledger.count_of(_RENDERED, max(plain)) - ledger.count_of(_RENDERED, cut)
        if between <= lead_in:
            cut, odd = max(plain), False
    limit = "budget" if cut > first else None
    return Cut(cut, odd, fits=False, last=(cut, odd) == max(found), limited_by=limit)


def _may_start(ledger: AnyLedger, policy: PairPolicy, position: int) -> bool:
    end = len(ledger)
    while position < end and ledger.kind_at(position) == ItemKind.EVENT:
        position += 1
    return position == end or ItemKind(ledger.kind_at(position)) in policy.starts


def overflow_error(needed: int, budget: int, summary_tokens: int = 0) -> ContextOverflowError:
    """Return the error for a context whose smallest legal form is larger than the budget.

    ``summary_tokens``: of these, those of the summary.
    """
    way = "compact the session, or shorten the largest items"
    if 2 * summary_tokens > needed:
        way = (
            f"or undo the compaction, whose summary has {summary_tokens:,} tokens (uncompact()), "
            "and compact with one that writes less, such as Extractive(lines_max=10)"
        )
    room = f"{needed - budget:,} more than the budget of {budget:,}"
    if budget < 1:
        room = "and reserve_tokens leaves nothing of the budget"
    needs = f"the smallest legal context needs {counted(needed, 'token')}"
    msg = f"{needs}, {room}: raise the budget, {way}"
    return ContextOverflowError(msg, needed_tokens=needed, budget_tokens=budget)


def assemble(
    material: Parts, choice: Cut, policy: PairPolicy, counter: TokenCounter
) -> tuple[list[Message], int, tuple[Repair, ...]]:
    """Render the selected material; returns ``(messages, tokens, repairs)``."""
    pins: list[Message] = []
    if material.pins:
        pins = [entry.message for entry in material.pins if not entry.event]
    repairs: list[Repair] = []
    if material.plain is not None:
        shown = material.plain
        tokens = sum(material.tokens)
    else:
        rendered = render(material.kept + material.suffix, policy)
        shown, repairs = rendered.messages, rendered.repairs
        tokens = sum(material.tokens[: len(material.pins)])
        for message, source in zip(shown, rendered.sources, strict=True):
            if source is None:
                tokens += count_message(message, counter)
            else:
                tokens += material.tokens[len(material.pins) + source]
    if material.summary is not None:
        message, known = summary_message(policy, material.summary), material.summary_tokens
        tokens += count_message(message, counter) if known is None else known
        pins.append(message)
    elif choice.lead_in or ((material.kept or material.altered) and _needs_lead_in(shown, policy)):
        message = lead_in_message(policy)
        tokens += count_message(message, counter)
        repairs.insert(0, Repair("lead_in", None))
        pins.append(message)
    return pins + shown, tokens, tuple(repairs)


def _needs_lead_in(shown: list[Message], policy: PairPolicy) -> bool:
    return policy.must_start and bool(shown) and classify(shown[0])[0] not in policy.starts


def fixed_cost(
    policy: PairPolicy, counter: TokenCounter, *, pin_tokens: int, summary: str | None
) -> int:
    """Tokens of pins, kept items and summary."""
    if summary is None:
        return pin_tokens
    return pin_tokens + count_message(summary_message(policy, summary), counter)


def lead_in_cost(policy: PairPolicy, counter: TokenCounter) -> int:
    """Tokens of the fixed lead-in line."""
    return count_message(lead_in_message(policy), counter)


# --- Plain lists of messages ----------------------------------------------------------------------


def _checked(messages: Any) -> list[Message]:
    """Return the messages as a list of dicts; objects of SDKs as their JSON."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        msg = f"messages: expected a list of mappings, got {type(messages).__name__}"
        raise InvalidItemError(msg)
    found = [plain_message(message) for message in messages]
    for at, message in enumerate(found):
        if not isinstance(message, Mapping):
            msg = f"messages[{at}]: expected a mapping, got {type(message).__name__}"
            raise InvalidItemError(msg)
    return [message if type(message) is dict else dict(message) for message in found]


def _ledger_of(
    messages: list[Message], policy: PairPolicy, counter: TokenCounter | None
) -> tuple[Ledger, list[int]]:
    ledger = new_ledger(policy, counter)
    counts = []
    for at, message in enumerate(messages):
        facts = pack_facts(message, _ZERO_SEED)
        if facts is None:
            msg = f"messages[{at}] makes or answers more than 65,535 calls"
            raise InvalidItemError(msg)
        try:
            tokens = 0 if counter is None else count_message(message, counter)
        except (TypeError, ValueError, RecursionError) as exc:
            msg = f"messages[{at}] cannot be written as JSON: {exc}"
            raise InvalidItemError(msg) from exc
        counts.append(tokens)
        ledger.push(facts, tokens)
    return ledger, counts


def validate(
    messages: Sequence[Mapping[str, Any]],
    policy: str | PairPolicy = "openai_chat",
    *,
    strict: bool = False,
    raise_on_error: bool = False,
) -> list[Violation]:
    """Return the violations of the provider's rules in a message list; an empty list is legal.

    Judges the form of each message (rule ``form``: roles, fields and types of content, as the
    provider's request types have them), and the calls and results of the list. Calls followed by
    nothing but results are open, which is a violation (``open_call``) only if ``strict``.

    Raises:
        HistoryViolationError: there is a violation, with ``raise_on_error``.
        InvalidItemError: ``messages`` is not a list, or one of its entries is not a mapping.
        InvalidOptionError: the policy is unknown.
    """
    from memcore.wire.validate import find_violations  # noqa: PLC0415 - contexts do not need it

    found = find_violations(_checked(messages), get_policy(policy), strict=strict)
    if found and raise_on_error:
        first = found[0]
        violations = counted(len(found), "violation")
        msg = f"{violations}; the first at position {first.position}: {first.reason}"
        raise HistoryViolationError(msg, violations=tuple(found))
    return found


def convert(messages: Sequence[Mapping[str, Any]], *, to: str | PairPolicy) -> Conversion:
    """Convert messages of any wire formats into a legal list of one provider's format.

    Args:
        messages: in OpenAI chat, OpenAI Responses, Anthropic, Gemini or LangChain format, mixed or
            not. Messages that are in the requested format already stay as they are.
        to: the policy of the requested format; any but ``seed``, which has no format of its own.

    Raises:
        InvalidItemError: as ``validate``; or a message cannot be written as JSON.
        InvalidOptionError: the policy is unknown, or makes no repairs.
    """
    from memcore.wire.convert import convert_entries  # noqa: PLC0415 - contexts do not need it

    policy = format_policy(to, "to")
    found = _checked(messages)
    return convert_entries([WireItem(at, message) for at, message in enumerate(found)], policy)


def safe_cuts(
    messages: Sequence[Mapping[str, Any]],
    policy: str | PairPolicy = "openai_chat",
    *,
    starts: bool = False,
) -> list[int]:
    """Return all positions at which the list can be cut without splitting a pair, ascending.

    With ``starts``, only those at which the policy lets a context start.

    Raises:
        InvalidItemError: as ``validate``.
        InvalidOptionError: as ``validate``.
    """
    ledger, _ = _ledger_of(_checked(messages), get_policy(policy), None)
    return ledger.safe_cuts(starts=starts)


def fit(
    messages: Sequence[Mapping[str, Any]],
    budget_tokens: int | None = None,
    *,
    reserve_tokens: int = 0,
    policy: str | PairPolicy = "openai_chat",
    counter: str | TokenCounter | None = None,
) -> Context:
    """Fit a plain list of messages into a budget; positions take the place of seqs.

    Raises:
        ContextOverflowError: the smallest legal context is larger than the budget.
        InvalidItemError: as ``validate``.
        InvalidOptionError: as ``validate``.
    """
    budget = checked_budget(budget_tokens, reserve_tokens)
    found, rules, by = _checked(messages), get_policy(policy), get_counter(counter)
    ledger, counts = _ledger_of(found, rules, by)
    first = rules.pin_count(ledger)

    def pick(at_least: int) -> Selection | None:
        choice = choose(
            ledger,
            rules,
            by,
            CutRequest(budget, sum(counts[:first]), first, None, at_least=at_least),
        )
        material = Parts(
            pins=[WireItem(at, found[at]) for at in range(first)],
            tokens=counts[:first] + counts[choice.cut :],
        )
        if is_regular(ledger, rules, choice.cut) and rules.takes_ids(found[choice.cut :]):
            material.plain = found[choice.cut :]
        else:
            material.suffix = [WireItem(at, found[at]) for at in range(choice.cut, len(found))]
        open_calls = open_from(ledger, choice)
        cut, omitted = choice.cut, choice.cut - first
        return Selection(material, choice, rules, by, cut, omitted, open_calls, budget=budget)

    return build(pick) or Context([], 0, 0, 0)


def open_from(ledger: AnyLedger, choice: Cut) -> int:
    """Count the open calls of the suffix."""
    return sum(position >= choice.cut for position in ledger.open_positions())


def is_regular(ledger: AnyLedger, policy: PairPolicy, cut: int) -> bool:
    """Return True if the suffix can be shown unchanged.

    The ledger knows that a result directly follows its call, but not the contents of a message that
    answers several calls: policies with such messages always render.
    """
    return policy.adjacency != "next_message" and not ledger.irregular_from(cut)


def build(pick: Callable[[int], Selection | None]) -> Context | None:
    """Pick and assemble; retry from a later cut if the rendered context is too large.

    Returns None if there is nothing to pick from.

    Raises:
        ContextOverflowError: the smallest legal context is larger than the budget.
    """
    at_least = needed = 0
    generation = None
    repaired = False
    while True:
        picked = pick(at_least)
        if picked is None:
            return None
        if generation is not None and picked.generation != generation:
            # The history was cut or replaced in the meantime.
            at_least, needed, generation, repaired = 0, 0, None, False
            continue
        choice = picked.choice
        messages, tokens, repairs = assemble(picked.material, choice, picked.policy, picked.counter)
        if tokens <= picked.budget:
            break
        needed = min(needed or tokens, tokens)
        if choice.last:
            raise overflow_error(needed, picked.budget, picked.material.summary_tokens or 0)
        repaired |= choice.fits
        at_least, generation = choice.cut + 1, picked.generation
    limit = "repair" if repaired else choice.limited_by
    return Context(
        messages=messages,
        tokens=tokens,
        cut=picked.cut_seq,
        omitted=picked.omitted,
        summary=picked.material.summary,
        repairs=repairs,
        open_calls=picked.open_calls,
        limited_by=limit or ("summary" if picked.folded else None),
    )
