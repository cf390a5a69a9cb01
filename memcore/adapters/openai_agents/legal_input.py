"""Legal model input: windows of item lists, unique ids, input callback and model filter.

The engine chooses the cut on a ledger, renders the rest legally and renames repeated ids; unchanged
items are returned as the same objects. The window has no lead-in line, because the SDK would store
such an added item.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple, TypeAlias, cast, overload

from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.run_config import CallModelData, ModelInputData

from memcore._fast import Ledger, classify, has_long_id, pack_facts
from memcore.compaction.reducers import (
    TOKENS_LEAST,
    ClearResults,
    ElideOutputs,
    Reduction,
    Visible,
    reduce_all,
)
from memcore.context import UNLIMITED, checked_budget
from memcore.faces import logger
from memcore.log import new_ledger
from memcore.model import ItemKind, Mask, Message
from memcore.records import record
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import POLICIES, Rendered, WireItem, rename_repeated_calls, render

__all__ = [
    "MODEL_KINDS",
    "Frame",
    "Settled",
    "Shown",
    "Terms",
    "legal_window",
    "opening_of",
    "safe_call_model_input_filter",
    "safe_session_input_callback",
    "server_id",
    "settle_ids",
]


# --- Ids that a provider gave to items, and requests that it refuses because of them --------------
# A reasoning item and the items after it refer to each other by id: the provider rejects an item
# without "its required reasoning item", as well as a repeated id. Without its id an item is
# independent. A list does not show whether reasoning was cut off before it, so the model items at
# the head of a partial list are treated as if it was.

MODEL_KINDS: Final = (ItemKind.ASSISTANT, ItemKind.CALL, ItemKind.REASONING)
_ID_IS_OPTIONAL: Final = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
    )
)


@record(slots=True)
class Settled:
    """The result of ``settle_ids``, by position in the list."""

    gone: set[int] = field(default_factory=set)
    """Items that cannot be shown."""
    changed: dict[int, Message] = field(default_factory=dict)
    """Items that are shown without their ids."""


def server_id(item: Message) -> str | None:
    """The provider's id of an item; None if it has none, or a placeholder."""
    found = item.get("id")
    if not isinstance(found, str) or found in ("", FAKE_RESPONSES_ID, item.get("call_id")):
        return None
    if "role" in item and not found.startswith("msg_"):
        return None
    return found


def settle_ids(
    items: Sequence[Message],
    kinds: Sequence[int],
    *,
    fixed_from: int,
    unseen: Collection[int] = (),
) -> Settled:
    """Find the items before ``fixed_from`` that must be removed or lose their id.

    ``unseen`` contains the positions of items omitted for other reasons.
    """
    found = Settled()
    seen = {(item.get("type"), server_id(item)) for item in items[fixed_from:]}
    places = [at for at in range(len(items)) if at not in unseen]
    head = {places[at] for at in _head([items[at] for at in places], [kinds[at] for at in places])}
    alone = False  # whether the reasoning of this response was removed
    for at, item in enumerate(items[:fixed_from]):
        kind = kinds[at]
        if kind == ItemKind.SYSTEM:
            continue
        in_head = at in head
        alone = alone and kind in MODEL_KINDS
        if item.get("call_id") == "" and str(item.get("type")).startswith("tool_search_"):
            found.changed[at] = _without(item, "call_id")  # absent; the SDK mistakes "" for an id
        name = server_id(item)
        if name is None:
            continue
        key: tuple[Any, str | None] = (item.get("type"), name)
        repeated = key in seen
        seen.add(key)
        if in_head and "role" not in item:
            found.gone.add(at)
        elif in_head:
            found.changed[at] = _without(found.changed.get(at, item), "id")
        elif repeated and kind == ItemKind.REASONING:
            found.gone.add(at)
            alone = True
        elif repeated and kind == ItemKind.ASSISTANT and "role" not in item:
            found.gone.add(at)  # a hosted tool call, repeated
        elif (repeated or alone) and ("role" in item or item.get("type") in _ID_IS_OPTIONAL):
            found.changed[at] = _without(found.changed.get(at, item), "id")
    return found


def _head(items: Sequence[Message], kinds: Sequence[int]) -> set[int]:
    """The positions of the first response's items, if it precedes the first user message.

    Empty if that response begins with its reasoning. Results before it answer calls that were cut
    off, and reasoning alone is not shown. If nothing of a response remains, the next one becomes
    the first of the shown list, and therefore of the next given list, so it is included, too.
    """
    found: set[int] = set()
    at = 0
    while ItemKind.USER in kinds and kinds[at] != ItemKind.USER:
        end = at
        while kinds[end] in MODEL_KINDS:
            end += 1
        if end == at and kinds[at] not in (ItemKind.SYSTEM, ItemKind.RESULT):
            break
        said = range(at, end)
        while said and kinds[said[-1]] == ItemKind.REASONING:
            said = said[:-1]
        if said and kinds[at] == ItemKind.REASONING:
            break
        found.update(said)
        if any("role" in items[place] or server_id(items[place]) is None for place in said):
            break
        at = max(end, at + 1)
    return found


def _without(item: Message, field_name: str) -> Message:
    return {name: value for name, value in item.items() if name != field_name}


# --- The part of a list of items that a model may receive: legal, and within a budget -------------

_log = logger("memcore.openai_agents")
_POLICY: Final = replace(POLICIES["openai_responses"], id_chars_max=None)
"""Long ids are shortened before rendering, except where an item must not change."""
_SEED: Final = b"memcore-no-seed."
_OPAQUE: Final = cast("bytes", pack_facts({}, _SEED))
_TOKENS_MAX: Final = 2**32 - 1
_ID_CHARS_MAX: Final = 64


class Shown(NamedTuple):
    """One item of a window."""

    source: int | None
    """Its index in the given list; None: memcore generated it."""
    item: Any


class Terms:
    """The token budget of a window, and its counter.

    Raises:
        InvalidOptionError: the budget or the counter is invalid.
    """

    def __init__(
        self,
        budget_tokens: int | None = None,
        reserve_tokens: int = 0,
        counter: str | TokenCounter | None = None,
    ) -> None:
        self.budget = checked_budget(budget_tokens, reserve_tokens)
        self.counter = get_counter(counter)

    @property
    def bounded(self) -> bool:
        """True if there is a budget."""
        return self.budget != UNLIMITED

    def less(self, tokens: int) -> Terms:
        """The same terms with a budget reduced by ``tokens``."""
        found = Terms(counter=self.counter)
        found.budget = self.budget - tokens if self.bounded else self.budget
        return found

    def count(self, item: Message) -> int:
        """The tokens of an item, even an invalid one; 0 without a budget."""
        if not self.bounded:
            return 0
        encoded = json.dumps(item, ensure_ascii=False, default=str).encode("utf-8", "replace")
        return self.counter.count_message(item, encoded)


@record(frozen=True, slots=True)
class Frame:
    """The part of a list that a window must keep."""

    keep_from: int
    """Everything from here on stays, along with the calls that it answers."""
    fixed_from: int
    """No item from here on may be changed."""
    opening: int = 0
    """If above 0: this many items from ``keep_from`` on open a turn; items after them may be
    dropped if the turn is too large."""


def opening_of(kinds: Sequence[int]) -> tuple[int, int]:
    """The start of the last turn, and the number of items that open it.

    The opening consists of the turn's last user items and the user and system items directly before
    them.
    """
    end = len(kinds)
    while end > 0 and kinds[end - 1] != ItemKind.USER:
        end -= 1
    start = end
    while start > 0 and kinds[start - 1] in (ItemKind.USER, ItemKind.SYSTEM):
        start -= 1
    return (start, end - start) if end else (len(kinds), 0)


def plain_items(given: Sequence[Any]) -> list[Message]:
    """The items as dicts; any object that does not convert becomes an opaque item."""
    found = []
    for item in given:
        dump = getattr(item, "model_dump", None)
        value = dump(exclude_unset=True) if callable(dump) else item
        found.append(value if isinstance(value, dict) else {})
    return found


def legal_window(given: Sequence[Any], frame: Frame | None, terms: Terms) -> list[Shown]:
    """The longest legal suffix of a list that fits, but at least the part its frame keeps.

    If even that does not fit, its outputs are shortened; if that is not enough, a warning is
    logged.

    Args:
        given: OpenAI Responses items.
        frame: the part to keep; None: as much of the last turn as fits.
        terms: the budget.
    """
    items = plain_items(given)
    kinds = [classify(item)[0] for item in items]
    if frame is None:
        start, opening = opening_of(kinds)
        frame = Frame(start, len(items), opening)
    if all(kind == ItemKind.RESULT for kind in kinds):  # answers to calls in a server-side history
        return [Shown(at, item) for at, item in enumerate(given)]
    unseen: set[int] = set()
    while True:
        settled = settle_ids(items, kinds, fixed_from=frame.fixed_from, unseen=unseen)
        entries = [
            WireItem(at, settled.changed.get(at, item))
            for at, item in enumerate(items)
            if at not in settled.gone
        ]
        found = _Fitting(entries, frame, terms).fitted()
        left_out = _left_out(entries, found, kinds)
        if left_out <= unseen:
            break
        unseen |= left_out  # the items after them become the head of the shown list
    shown = []
    for message, source in zip(found.messages, found.sources, strict=True):
        seq = None if source is None else entries[source].seq
        unchanged = seq is not None and message is items[seq]
        shown.append(Shown(seq, given[seq] if unchanged and seq is not None else message))
    return shown


def _left_out(entries: Sequence[WireItem], found: Rendered, kinds: Sequence[int]) -> set[int]:
    """Positions of hidden items before the first user message, if others before it are shown.

    Empty if the shown list begins with the model: then no part of a response was cut off.
    """
    if ItemKind.USER not in kinds:
        return set()
    end = kinds.index(ItemKind.USER)
    shown = {entries[source].seq for source in found.sources if source is not None}
    first = next((at for at in range(end) if at in shown), end)
    if first == end or kinds[first] in MODEL_KINDS:
        return set()
    return {entry.seq for entry in entries if entry.seq < end} - shown


class _Fitting:
    """Chooses the cut for one list."""

    def __init__(self, entries: list[WireItem], frame: Frame, terms: Terms) -> None:
        self.entries = entries
        self.frame = frame
        self.terms = terms
        self.counts: dict[int, int] = {}
        self.ledger = self._measured()
        self.pins = _POLICY.pin_count(self.ledger)
        last = len(entries)
        self.keep = next((at for at in range(last) if entries[at].seq >= frame.keep_from), last)
        self.compaction = max(
            (at for at, entry in enumerate(entries) if entry.message.get("type") == "compaction"),
            default=-1,
        )
        self.long_ids = has_long_id([entry.message for entry in entries], _ID_CHARS_MAX)

    def _measured(self) -> Ledger:
        """Build the ledger.

        Items so far back that they cannot fit are not counted, but entered as too large.
        """
        budget, total = self.terms.budget, 0
        if self.terms.bounded:
            for at in range(len(self.entries) - 1, -1, -1):
                if total > 2 * budget:  # twice, since it includes orphans, which cost nothing
                    break
                total += self._count(at)
        ledger = new_ledger(_POLICY, self.terms.counter if self.terms.bounded else None)
        too_much = min(budget + 1, _TOKENS_MAX) if self.terms.bounded else 0
        for at, entry in enumerate(self.entries):
            facts = pack_facts(entry.message, _SEED) or _OPAQUE
            ledger.push(facts, min(self.counts.get(at, too_much), _TOKENS_MAX))
        return ledger

    def _count(self, at: int) -> int:
        found = self.counts.get(at)
        if found is None:
            found = self.counts[at] = self.terms.count(self.entries[at].message)
        return found

    def fitted(self) -> Rendered:
        """The window that fits, or else the smallest legal one."""
        last_shown = max(self.ledger.last_shown, 0)
        head, first = list(range(self.pins)), self.pins
        latest = self.ledger.cut_at_most(min(self.keep, last_shown))
        found = self._tried(head, first, latest)
        behind = self.keep + self.frame.opening
        if found is None and self.frame.opening and behind <= last_shown:
            head += range(max(self.keep, self.pins), behind)
            first, latest = behind, self._last_step(behind)
            found = self._tried(head, first, latest)
        if found is not None:
            return found
        smallest, tokens = self._shortened(*self._made(head, max(latest, first)))
        if tokens > self.terms.budget:
            _log.warning(
                "the smallest legal window needs %d tokens, %d more than its budget: raise "
                "budget_tokens, or shorten the largest items",
                tokens,
                tokens - self.terms.budget,
            )
        return smallest

    def _shortened(self, found: Rendered, tokens: int) -> tuple[Rendered, int]:
        """Truncate outputs until the window fits, largest first; return it with its tokens.

        If that is not enough, outputs are replaced by placeholders. Protected outputs stay
        unchanged.
        """
        over = tokens - self.terms.budget
        if over <= 0:
            return found, tokens
        items = [
            Visible(at, ItemKind(classify(message)[0]), message, self._cost(message, source),
                    source is not None and self.entries[source].seq >= self.frame.fixed_from)
            for at, (message, source) in enumerate(zip(found.messages, found.sources, strict=True))
        ]  # fmt: skip
        results = [item for item in items if item.kind == ItemKind.RESULT and not item.protected]
        by = Reduction(_POLICY, self.terms.counter)
        most = _cap([item.tokens for item in results], over)
        while over > 0 and most >= TOKENS_LEAST:
            masks = reduce_all(items, [ElideOutputs(max_tokens=most)], by)
            now = _total(items, masks)
            over = now - self.terms.budget
            most -= max(1, -(-over // len(results)))
        if over > 0:
            least = ElideOutputs(max_tokens=TOKENS_LEAST)
            masks = reduce_all(items, [least, ClearResults(keep_last=0)], by)
            now = _total(items, masks)
            if now > self.terms.budget:  # it cannot fit, so keep the truncated outputs
                masks = reduce_all(items, [least], by)
                now = _total(items, masks)
        for at, mask in masks.items():
            if mask.message is not None:
                found.messages[at] = mask.message
        if masks:
            _log.info("%d outputs are shortened to fit into the budget", len(masks))
        return found, now

    def _cost(self, message: Message, source: int | None) -> int:
        return self.terms.count(message) if source is None else self._count(source)

    def _last_step(self, first: int) -> int:
        """The last cut of a turn: before its last response and its open calls."""
        waiting = [at for at in self.ledger.open_positions() if at >= first]
        last = min([self.ledger.last_shown, *waiting])
        return max(self.ledger.cut_at_most(last), first)

    def _tried(self, head: list[int], first: int, latest: int) -> Rendered | None:
        """The longest window with a cut from ``first`` to ``latest`` that fits after the head."""
        room = self.terms.budget - sum(self._count(at) for at in head)
        cut: int | None = first
        if self.ledger.cost(first) > room:
            if self.compaction >= first:
                room -= self._count(self.compaction)
            cut = self._next(first, latest, room)
        while cut is not None:
            found, tokens = self._made(head, cut)
            if tokens <= self.terms.budget:
                return found
            cut = self._next(cut + 1, latest, room)
        return None

    def _next(self, first: int, latest: int, room: int) -> int | None:
        """The first cut that is cheap enough: at a user item, or else between responses."""
        cut = self.ledger.cut_for_budget(room, at_least=first)
        if 0 <= cut <= latest:
            return cut
        cut = first - 1
        while True:
            cut = self.ledger.cut_for_budget(room, at_least=cut + 1, starts=False)
            if not 0 <= cut <= latest:
                return None
            if not self._inside_response(cut):
                return cut

    def _inside_response(self, cut: int) -> bool:
        kind = self.ledger.kind_at
        return cut > 0 and kind(cut) in MODEL_KINDS and kind(cut - 1) in MODEL_KINDS

    def _made(self, head: list[int], cut: int) -> tuple[Rendered, int]:
        """Render the window from a cut on; return it with its tokens."""
        places = [*head, *range(cut, len(self.entries))]
        if 0 <= self.compaction < cut and self.compaction not in head:
            places.insert(self.pins, self.compaction)
        if not self.long_ids and not self.ledger.irregular_from(cut):
            plain = Rendered([self.entries[at].message for at in places], [*places])
            return plain, sum(map(self._count, places)) if self.terms.bounded else 0
        chosen, _ = rename_repeated_calls(
            [self.entries[at] for at in places],
            chars_max=_ID_CHARS_MAX,
            is_fixed=lambda entry: entry.seq >= self.frame.fixed_from,
        )
        found = render(chosen, _POLICY, may_rename=False)  # new input stays as it is
        found.sources = [None if at is None else places[at] for at in found.sources]
        tokens = sum(map(self._cost, found.messages, found.sources))
        return found, tokens


def _cap(sizes: Sequence[int], over: int) -> int:
    """The cap on each size that reduces their sum by ``over``.

    Negative if even removing everything is not enough.
    """
    left = sum(sizes) - over
    for count, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * count >= left:
            return left // count
        left -= size
    return left


def _total(items: Sequence[Visible], masks: Mapping[int, Mask]) -> int:
    """The tokens of the items with masks applied."""
    return sum(masks[item.seq].tokens if item.seq in masks else item.tokens for item in items)


# --- Input of a run, for ``RunConfig(session_input_callback=)`` -----------------------------------

InputCallback: TypeAlias = Callable[[list[Any], list[Any]], list[Any]]


@overload
def safe_session_input_callback(history: list[Any], new_input: list[Any], /) -> list[Any]: ...


@overload
def safe_session_input_callback(
    *,
    budget_tokens: int | None = ...,
    reserve_tokens: int = ...,
    counter: str | TokenCounter | None = ...,
) -> InputCallback: ...


def safe_session_input_callback(
    history: list[Any] | None = None,
    new_input: list[Any] | None = None,
    /,
    *,
    budget_tokens: int | None = None,
    reserve_tokens: int = 0,
    counter: str | TokenCounter | None = None,
) -> list[Any] | InputCallback:
    """The history and the new input of a run as the model may receive them.

    Pass it to ``RunConfig`` directly, or call it with the arguments below to get a callback. The
    new input is always kept whole and unchanged, with the calls that it answers; of the history,
    the longest legal suffix that fits is kept. The session stores only the new input: omissions,
    changes and synthetic answers affect only the model's view.

    Args:
        history: the session's items, in a list that the callback may modify.
        new_input: the new items of this run.
        budget_tokens: the maximum number of tokens, including the new input; None: no limit. If the
            smallest legal list is larger, it is passed anyway, and a warning is logged.
        reserve_tokens: tokens of the budget to leave free (for instructions, tools, and the
            answer).
        counter: the token counter, as in ``memcore.open``.

    Raises:
        InvalidOptionError: budget, reserve or counter is invalid.
    """
    terms = Terms(budget_tokens, reserve_tokens, counter)
    if history is None or new_input is None:
        return lambda past, new: _combined(past, new, terms)
    return _combined(history, new_input, terms)


def _combined(history: list[Any], new_input: list[Any], terms: Terms) -> list[Any]:
    start = len(history)
    shown = legal_window([*history, *new_input], Frame(start, start), terms)
    return _owned(shown, history, new_input)


def _owned(shown: list[Shown], history: list[Any], new_input: list[Any]) -> list[Any]:
    """Attribute each item to the list by which the SDK recognizes it.

    The SDK stores items found in neither list as new. Therefore items of the history are changed in
    place, and items that memcore made are added to the history list.
    """
    start, often = len(history), Counter(map(id, history))
    given = [*history, *new_input]
    found: list[Shown] = []
    shells: dict[Any, Any] = {}
    for source, item in shown:
        kept = _called(item, shells, source is not None and source < start)
        if source is None:
            history.append(kept)
        elif kept is not given[source] and source < start:
            if often[id(given[source])] > 1:
                history[source] = kept
            else:
                given[source].clear()
                given[source].update(kept)
                kept = given[source]
        found.append(Shown(source, kept))
    shown_new = {source for source, _ in found if source is not None and source >= start}
    for at in range(start, len(given)):
        if at not in shown_new:
            found.insert(_place(found, at), Shown(at, given[at]))
    return [item for _, item in found]


def _place(found: list[Shown], at: int) -> int:
    """The insertion index for an item of the new input that the window omits."""
    behind = (n for n, (source, _) in enumerate(found) if source is not None and source > at)
    return next(behind, len(found))


def _called(item: dict[str, Any], shells: dict[Any, Any], of_history: bool) -> dict[str, Any]:
    """Give a local shell's call or output the ``call_id`` that the SDK requires.

    The schema's outputs refer to their call by ``id``, but without a ``call_id`` the SDK considers
    the call unanswered and drops it from the history; the SDK itself writes both.
    """
    kind, name, call_id = item.get("type"), item.get("id"), item.get("call_id")
    named = isinstance(call_id, str) and bool(call_id)
    if not isinstance(name, str) or not name:
        return item
    if kind == "local_shell_call" and of_history:
        shells[name] = call_id if named else name
        return item if named else {**item, "call_id": name}
    if kind == "local_shell_call_output" and not named and name in shells:
        return {**item, "call_id": shells[name]}
    return item


# --- Input of a model call, for ``RunConfig(call_model_input_filter=)`` ---------------------------

InputFilter: TypeAlias = Callable[[CallModelData[Any]], ModelInputData]


@overload
def safe_call_model_input_filter(data: CallModelData[Any], /) -> ModelInputData: ...


@overload
def safe_call_model_input_filter(
    *,
    budget_tokens: int | None = ...,
    reserve_tokens: int = ...,
    counter: str | TokenCounter | None = ...,
) -> InputFilter: ...


def safe_call_model_input_filter(
    data: CallModelData[Any] | None = None,
    /,
    *,
    budget_tokens: int | None = None,
    reserve_tokens: int = 0,
    counter: str | TokenCounter | None = None,
) -> ModelInputData | InputFilter:
    """The input of one model call as the model may receive it.

    Pass it to ``RunConfig`` directly, or call it with the arguments below to get a filter. The
    session keeps what the filter omits. Earlier turns are dropped first; if a single turn is too
    large, its user items and the latest steps that fit are kept. Outputs are only shortened in the
    last step, largest first.

    A list of only results is passed unchanged: it continues a conversation stored by a server.

    Args:
        data: the data that the Runner is about to send.
        budget_tokens: the maximum number of tokens, including instructions; None: no limit. If the
            smallest legal list is larger, it is passed anyway, and a warning is logged.
        reserve_tokens: tokens of the budget to leave free (for tools and the answer).
        counter: the token counter, as in ``memcore.open``.

    Raises:
        InvalidOptionError: budget, reserve or counter is invalid.
    """
    terms = Terms(budget_tokens, reserve_tokens, counter)
    if data is None:
        return lambda asked: _filtered(asked, terms)
    return _filtered(data, terms)


def _filtered(data: CallModelData[Any], terms: Terms) -> ModelInputData:
    asked = data.model_data
    said = 0
    if terms.bounded and asked.instructions:
        said = terms.count({"role": "system", "content": asked.instructions})
    shown = legal_window(asked.input, None, terms.less(said))
    return ModelInputData([item for _, item in shown], asked.instructions)
