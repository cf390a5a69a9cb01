"""Assembly of a payload: shares of the budget, sections as text, and the whole request.

What is fixed comes first: instructions, tools and the user's message. Then every section gets its
least tokens by priority, and shares what is left with the others up to its budget. In a section the
best units are taken first, and shown in a stable order. The rendered whole is counted, and units
give way until it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from memcore._fast import classify
from memcore.codec.keys import blake2b
from memcore.codec.values import encode_json
from memcore.context import convert, fit
from memcore.errors import ContextOverflowError, InvalidItemError
from memcore.log import count_message
from memcore.memory.recall import turn_place
from memcore.model import Context, ItemKind, Message
from memcore.payload.units import (
    PayloadUnit,
    UnitLine,
    escaper,
    json_copy,
    state_candidates,
    unit_candidates,
)
from memcore.records import record
from memcore.tokens import TokenCounter, checked_tokens
from memcore.wire import PairPolicy, WireItem, get_policy
from memcore.wire.render import Rendered, render, user_message
from memcore.wire.validate import pair_violations

__all__ = [
    "AssembledPayload",
    "HistorySource",
    "LeftOut",
    "PayloadContents",
    "PayloadPart",
    "Section",
    "SectionUse",
    "assemble_contents",
    "shares",
]


Volatility: TypeAlias = Literal["stable", "turn"]
"""Time for which a section says the same: many turns of a session, or one."""
_STEPS: Final = 4
"""Parts of the history's room by which a steady cut moves."""
_SEPARATOR: Final = "\n\n"


# --- What is assembled ----------------------------------------------------------------------------


class HistorySource(Protocol):
    """Session, as far as a payload reads it."""

    @property
    def id(self) -> str:
        """Return its name."""

    @property
    def counter(self) -> str:
        """Return the id of its token counter."""

    def context(
        self,
        budget_tokens: int | None = None,
        *,
        format: str | None = None,  # noqa: A002 - the session's word
    ) -> Context:
        """Return a context in the format of a policy."""

    def pressure(self) -> Any:
        """Return its figures, of which ``tokens`` is the size of the whole context."""


class CountedLine(NamedTuple):
    """CountedLine of a unit."""

    unit: PayloadUnit
    text: str
    start: int
    stop: int
    tokens: int
    place: int
    """Its place among the lines of the section."""
    rank: tuple[float, int]
    """Key that sorts the best line first."""


_RANK: Final = attrgetter("rank")
_PLACE: Final = attrgetter("place")


@record(slots=True)
class Section:
    """One section as it was added."""

    name: str
    kind: str
    budget_tokens: int
    """Most tokens that it takes."""
    at_least_tokens: int
    priority: int
    volatility: Volatility = "turn"
    heading: str = ""
    units: tuple[PayloadUnit, ...] = ()
    examples: tuple[tuple[Message, ...], ...] = ()
    """Groups of messages in place of units."""
    read: Callable[[float], Iterable[UnitLine]] | None = None
    """Returns the units at a time (seconds since 1970) in place of ``units``."""
    by_rank: bool = False
    """True if units are shown in the order of their scores, else in that in which they come."""
    chars: int = field(init=False)
    """Characters of the units."""
    ready: tuple[frozenset[str], list[CountedLine]] | None = None
    """Lines of ``units`` as they were made for sections of these names, the tags of all fences."""
    converted: tuple[str, list[tuple[list[Message], int]]] | None = None
    """Examples as messages of a policy, and their tokens."""

    def __post_init__(self) -> None:
        self.chars = sum(len(unit.id) + len(unit.text) for unit in self.units)


@record(slots=True)
class PayloadContents:
    """Everything that was added to a payload."""

    budget: int
    counter: TokenCounter
    instructions: dict[str, str] = field(default_factory=dict)
    tools: list[Any] = field(default_factory=list)
    user: Message | str | None = None
    history: HistorySource | Sequence[Mapping[str, Any]] | None = None
    steady: bool = True
    sections: dict[str, Section] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """Tokens by format and text, as far as the last assembly counted them."""


# --- What comes of it -----------------------------------------------------------------------------


class PayloadPart(NamedTuple):
    """Place of one unit in an assembled payload, and its origin."""

    section: str
    unit: str
    message: int | None
    """Index of its (first) message; None: it is in the system prompt."""
    start: int
    """First character in the text of the message, or of all texts of the system prompt."""
    stop: int
    """End of these characters: a JSON string without its quotes; of instructions and playbooks the
    text, of state the JSON value; 0: the unit is whole messages."""
    source: Mapping[str, Any]
    by: str
    tokens: int


class LeftOut(NamedTuple):
    """Unit that is not shown."""

    section: str
    unit: str
    reason: str
    """``budget``, ``trust``, ``duplicate`` or ``expired``."""


class SectionUse(NamedTuple):
    """Room that a section took."""

    tokens: int
    units: int
    left_out: int


@record(frozen=True, slots=True)
class AssembledPayload:
    """Request for a model: legal for its policy, and within the budget."""

    policy: str
    messages: list[Message]
    system: Any
    """System prompt where the provider takes it beside the messages: Anthropic's blocks, Gemini's
    content, the ``instructions`` of OpenAI's Responses; else None."""
    tools: list[Any]
    tokens: int
    """Tokens of messages, system prompt and tools together, by the payload's counter."""
    budget_tokens: int
    """Budget, without what is reserved."""
    sections: Mapping[str, SectionUse]
    provenance: tuple[PayloadPart, ...]
    left_out: tuple[LeftOut, ...]
    breakpoints: tuple[int, ...]
    """Counts of leading messages where a provider's cache ends well: those that no turn changes,
    and those up to the end of the history."""
    context: Context | None = None
    """Context of the history: its cut, its repairs, its open calls."""

    def request(self) -> dict[str, Any]:
        """Return the keyword arguments of the provider's call, without the model."""
        wire = get_policy(self.policy).wire
        if wire == "gemini":
            config = {"system_instruction": self.system, "tools": self.tools}
            config = {name: value for name, value in config.items() if value}
            return {"contents": self.messages, **({"config": config} if config else {})}
        found = {"messages": self.messages, "system": self.system, "tools": self.tools}
        if wire == "responses":
            found = {"input": self.messages, "instructions": self.system, "tools": self.tools}
        return {name: value for name, value in found.items() if value}

    def record(self) -> dict[str, Any]:
        """Return references to all units, and a hash, for ``session.record("payload", ...)``.

        It holds no text: who assembles the same units again gets the same hash.
        """
        shown: dict[str, list[Any]] = {}
        for part in self.provenance:
            entry = [part.unit, dict(part.source), part.by]
            shown.setdefault(part.section, []).append(entry)
        return {
            "policy": self.policy,
            "budget_tokens": self.budget_tokens,
            "tokens": self.tokens,
            "sections": shown,
            "left_out": [list(each) for each in self.left_out],
            "hash": self.digest(),
        }

    def digest(self) -> str:
        """Return a hash of messages, system prompt and tools, as hex."""
        body = encode_json([self.policy, self.messages, self.system, self.tools])[0]
        return str(blake2b(body, digest_size=16).hexdigest())


# --- Shares of a room -----------------------------------------------------------------------------


def shares(room: int, wants: Sequence[int]) -> list[int]:
    """Share out a room equally, up to what each wants; what one leaves over goes to the others."""
    found = [0] * len(wants)
    unmet = [at for at, want in enumerate(wants) if want > 0]
    while unmet and room > 0:
        each = max(room // len(unmet), 1)
        for at in unmet:
            more = min(each, wants[at] - found[at], room)
            found[at] += more
            room -= more
        unmet = [at for at in unmet if found[at] < wants[at]]
    return found


def stepped(whole: int, limit: int, step: int) -> int:
    """Return the budget of a history of which the beginning does not fit, in whole steps.

    While the history grows by less than a step, its cut stays where it is.
    """
    if whole <= limit or step <= 0:
        return limit
    return max(whole - step * -(-(whole - limit) // step), 1)


# --- Sections as text -----------------------------------------------------------------------------


class _SectionBlock(NamedTuple):
    """Section as it is shown."""

    section: Section
    text: str
    lines: list[CountedLine]
    tokens: int
    """Tokens of a message with this block alone."""

    def parts(self, message: int, at: int) -> Iterator[PayloadPart]:
        """Yield the places of its units, if the block begins at a character of a message."""
        name, make = self.section.name, PayloadPart._make
        at += len(_opening(self.section))
        for unit, text, start, stop, tokens, _, _ in self.lines:
            yield make(
                (name, unit.id, message, at + start, at + stop, unit.source, unit.by, tokens)
            )
            at += len(text) + 1


class _Placed(NamedTuple):
    """Block in a message."""

    block: _SectionBlock
    message: int
    at: int
    """First character in the text of the message."""


class _Examples(NamedTuple):
    """One example as it is shown."""

    section: str
    unit: str
    messages: list[Message]
    tokens: int


class _Chosen(NamedTuple):
    """Everything that is shown."""

    user: Message | None
    fixed: Mapping[str, int]
    """Tokens of what is fixed, by name."""
    examples: list[_Examples]
    stable: list[_SectionBlock]
    context: Context | None
    turn: list[_SectionBlock]


def _opening(section: Section) -> str:
    return f"{section.heading}\n<{section.name}>\n"


def _fenced(section: Section, lines: Iterable[str]) -> str:
    return _opening(section) + "".join(line + "\n" for line in lines) + f"</{section.name}>"


def _ordered(section: Section, lines: Iterable[CountedLine]) -> list[CountedLine]:
    """Return lines in the order in which the section shows them."""
    if section.by_rank:
        return sorted(lines, key=_RANK)
    return sorted(lines, key=_PLACE)


def assemble_contents(
    contents: PayloadContents, policy: PairPolicy, now: float, *, cache_marks: bool
) -> AssembledPayload:
    """Assemble a request.

    Parts that are legal each by itself may need repairs together, which cost tokens: call ids that
    an example shares with the history, results for calls that are open in front of the user's
    message. Then it is assembled again, with as much kept free.

    Raises:
        ContextOverflowError: what is fixed does not fit, or the smallest history beside it.
        InvalidItemError: a message cannot be converted.
    """
    marks = cache_marks and policy.wire == "anthropic"
    kept_free, excess = 0, 1
    while excess > 0:
        made = _Assembly(contents, policy, now, kept_free).run()
        if marks:
            made = _marked(made, contents.counter)
        excess = made.tokens - contents.budget
        kept_free += excess
    return made


class _Assembly:
    """One assembly of a payload.

    Args:
        contents: what was added to the payload.
        policy: the pair policy; one with a format of its own.
        now: the time, seconds since 1970.
        kept_free: tokens that are kept free for repairs.
    """

    def __init__(
        self, contents: PayloadContents, policy: PairPolicy, now: float, kept_free: int
    ) -> None:
        self._contents = contents
        self._policy = policy
        self._now = now
        self._kept_free = kept_free
        self._known = contents.counts
        self._counts: dict[tuple[str, str], int] = {}
        self._left_out: list[LeftOut] = []
        self._sections = [each for each in contents.sections.values() if each.kind != "history"]
        self._lines: dict[str, list[CountedLine]] = {}

    def run(self) -> AssembledPayload:
        """Assemble the request; repairs that ``kept_free`` does not allow for may exceed it.

        Raises:
            ContextOverflowError: what is fixed does not fit, or the smallest history beside it.
            InvalidItemError: a message cannot be converted.
        """
        user = self._user()
        fixed = self._fixed(user)
        self._need_room({**fixed, "repairs": self._kept_free} if self._kept_free else fixed)
        self._prepare()
        room = self._contents.budget - sum(fixed.values()) - self._kept_free
        least = self._least(room)
        front = [each for each in self._sections if each.volatility == "stable"]
        turn = [each for each in self._sections if each.volatility == "turn"]
        kept = self._history_least() + sum(least[each.name] for each in turn)
        firm = sum(least[each.name] for each in front)
        in_front = min(max(self._share_in_front(front, turn, fixed), firm), room - kept)
        given = self._shared(front, in_front, least)
        examples = self._examples(front, given)
        taken = sum(each.tokens for each in examples)
        stable = self._blocks(front, in_front - taken, given)
        room -= taken + self._tokens_of(stable)
        context = self._context(room, turn, least, fixed)
        room -= 0 if context is None else context.tokens
        self._leave_out_shown(turn, stable)
        known = len(self._left_out)
        blocks = self._blocks(turn, room, self._shared(turn, room, least))
        if repeated := self._repeated(turn, [*stable, *blocks], context):
            del self._left_out[known:]  # the blocks are chosen anew, without these
            for section in turn:
                self._leave_out(section, repeated.get(section.name, set()))
            blocks = self._blocks(turn, room, self._shared(turn, room, least))
        self._contents.counts = self._counts
        return self._composed(_Chosen(user, fixed, examples, stable, context, blocks))

    # --- what is fixed ----------------------------------------------------------------------------

    def _user(self) -> Message | None:
        given = self._contents.user
        if given is None:
            return None
        if isinstance(given, str):
            return user_message(self._policy, given)
        found = convert([json_copy(given, "user")], to=self._policy).messages
        if len(found) != 1 or classify(found[0])[0] != ItemKind.USER:
            msg = "user: expected one message of the user"
            raise InvalidItemError(msg)
        return found[0]

    def _fixed(self, user: Message | None) -> dict[str, int]:
        """Return the tokens of what is fixed, by name."""
        contents, by = self._contents, self._contents.counter
        found = {
            name: self._count(f"system {self._policy.wire}", text, self._instruction(text))
            for name, text in contents.instructions.items()
        }
        if contents.tools:
            found["tools"] = checked_tokens(by.id, by.count_tools(contents.tools))
        if user is not None:
            found["user"] = count_message(user, by)
        return found

    def _instruction(self, text: str) -> Message:
        role = {"type": "system"} if self._policy.wire == "langchain" else {"role": "system"}
        return {**role, "content": text}

    def _count(self, form: str, text: str, message: Message) -> int:
        """Return the tokens of a message of some form with a text, counted once."""
        known = self._counts.get((form, text), self._known.get((form, text)))
        if known is None:
            known = count_message(message, self._contents.counter)
        self._counts[form, text] = known
        return known

    def _count_block(self, text: str) -> int:
        return self._count(self._policy.wire, text, user_message(self._policy, text))

    def _need_room(self, parts: Mapping[str, int]) -> None:
        """Refuse parts that do not fit into the budget.

        Raises:
            ContextOverflowError
        """
        budget, needed = self._contents.budget, sum(parts.values())
        if needed > budget:
            told = ", ".join(f"{name} {tokens}" for name, tokens in parts.items())
            msg = (
                f"the payload needs {needed} tokens, {needed - budget} more than its budget of "
                f"{budget}: {told}"
            )
            raise ContextOverflowError(msg, needed_tokens=needed, budget_tokens=budget)

    # --- lines of all units -----------------------------------------------------------------------

    def _prepare(self) -> None:
        """Read and judge the units of all sections, and count the line of each."""
        names = frozenset(self._contents.sections)
        risky = escaper(names)
        for section in self._sections:
            if section.read is not None:
                given = list(section.read(self._now))
                self._left_out += [
                    LeftOut(section.name, each.unit.id, each.refused)
                    for each in given
                    if each.refused is not None
                ]
                lines = self._counted([each for each in given if each.refused is None])
            else:
                if section.ready is None or section.ready[0] != names:
                    found = (state_candidates if section.kind == "state" else unit_candidates)(
                        section.units, risky
                    )
                    section.ready = names, self._counted(list(found))
                lines = section.ready[1]
            fresh = [line for line in lines if not self._is_over(line.unit)]
            if len(fresh) < len(lines):
                over = (line.unit.id for line in lines if self._is_over(line.unit))
                self._left_out += [LeftOut(section.name, unit, "expired") for unit in over]
            self._lines[section.name] = fresh

    def _is_over(self, unit: PayloadUnit) -> bool:
        return unit.expires_at is not None and unit.expires_at <= self._now

    def _counted(self, given: Sequence[UnitLine]) -> list[CountedLine]:
        """Return units with the tokens of their lines, each counted once."""
        new = [each.line for each in given if ("line", each.line) not in self._known]
        if new:
            found = self._contents.counter.count_many([line + "\n" for line in new])
            for line, tokens in zip(new, found, strict=True):
                self._counts["line", line] = tokens
        lines: list[CountedLine] = []
        for at, (unit, text, start, stop, _) in enumerate(given):
            key = "line", text
            tokens = max(self._counts[key] if key in self._counts else self._known[key], 1)
            self._counts[key] = tokens
            rank = (0.0 if unit.score is None else -unit.score), at
            lines.append(CountedLine(unit, text, start, stop, tokens, at, rank))
        return lines

    # --- shares -----------------------------------------------------------------------------------

    def _history_least(self) -> int:
        section = self._contents.sections.get("history")
        return 0 if section is None else section.at_least_tokens

    def _least(self, room: int) -> dict[str, int]:
        """Return the least tokens of each section, by priority; who does not get them is dropped.

        Raises:
            ContextOverflowError: the history does not get its own.
        """
        left = room - self._history_least()
        if left < 0:
            taken = self._contents.budget - room
            self._need_room({"instructions, tools and user": taken, "history": room - left})
        found: dict[str, int] = {}
        for section in sorted(self._sections, key=lambda each: -each.priority):
            need = min(section.at_least_tokens, self._want(section))
            if need <= left:
                found[section.name] = need
                left -= need
                continue
            units = [line.unit.id for line in self._lines[section.name]]
            units += map(str, range(len(section.examples)))
            self._left_out += [LeftOut(section.name, unit, "budget") for unit in units]
            self._sections.remove(section)
        return found

    def _want(self, section: Section) -> int:
        """Return the tokens that a section takes at most."""
        if section.examples:
            return section.budget_tokens
        lines = self._lines[section.name]
        if not lines:
            return 0
        whole = section.budget_tokens - self._frame(section)
        for line in lines:
            whole -= line.tokens
            if whole <= 0:
                return section.budget_tokens
        return section.budget_tokens - whole

    def _frame(self, section: Section) -> int:
        """Return the tokens of a section without lines."""
        return self._count_block(_fenced(section, [""]))

    def _shared(
        self, sections: Iterable[Section], room: int, least: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the tokens of each section: its least, and an equal share of the rest."""
        firm = {each.name: least[each.name] for each in sections}
        more = [self._want(each) - firm[each.name] for each in sections]
        extra = shares(room - sum(firm.values()), more)
        return {name: firm[name] + each for name, each in zip(firm, extra, strict=True)}

    def _share_in_front(
        self, front: list[Section], turn: list[Section], fixed: Mapping[str, int]
    ) -> int:
        """Return the room of the stable sections: no turn changes it, so they stay the same."""
        room = self._contents.budget - sum(fixed.values()) + fixed.get("user", 0)
        wants = [self._want(each) for each in front] + [each.budget_tokens for each in turn]
        if self._contents.history is not None:
            wants.append(room)
        return sum(shares(room, wants)[: len(front)])

    # --- blocks -----------------------------------------------------------------------------------

    def _converted(self, section: Section) -> list[tuple[list[Message], int]]:
        """Return the examples of a section in the policy's format, each with its tokens."""
        if section.converted is None or section.converted[0] != self._policy.name:
            found = []
            for messages in section.examples:
                made = convert(json_copy(messages, "examples"), to=self._policy).messages
                tokens = sum(count_message(each, self._contents.counter) for each in made)
                found.append((made, tokens))
            section.converted = self._policy.name, found
        return section.converted[1]

    def _examples(self, sections: Iterable[Section], given: Mapping[str, int]) -> list[_Examples]:
        """Return the examples that fit, each whole."""
        found: list[_Examples] = []
        for section in sections:
            left = given[section.name]
            for at, (made, tokens) in enumerate(self._converted(section)):
                if made and tokens <= left:
                    shown = json_copy(made, "examples")  # the caller's own, to change as it likes
                    found.append(_Examples(section.name, str(at), shown, tokens))
                    left -= tokens
                else:
                    self._left_out.append(LeftOut(section.name, str(at), "budget"))
        return found

    def _blocks(
        self, sections: Iterable[Section], room: int, given: Mapping[str, int]
    ) -> list[_SectionBlock]:
        """Return sections with their best lines, together in one message within a room.

        ``given``: the tokens of each section.
        """
        sections = [each for each in sections if self._lines[each.name]]
        found = [self._block(each, given[each.name]) for each in sections]
        found = [block for block in found if block.lines]
        while found and self._tokens_of(found) > room:
            least_wanted = min(found, key=lambda block: block.section.priority)
            at = found.index(least_wanted)
            found[at] = self._shorter(least_wanted)
            if not found[at].lines:
                del found[at]
        return found

    def _block(self, section: Section, room: int) -> _SectionBlock:
        """Return a section with its best lines within a room, and say which are left out."""
        left = room - self._frame(section)
        chosen: list[CountedLine] = []
        for line in sorted(self._lines[section.name], key=_RANK):
            if line.tokens <= left:
                chosen.append(line)
                left -= line.tokens
            else:
                self._left_out.append(LeftOut(section.name, line.unit.id, "budget"))
        block = self._rendered(section, _ordered(section, chosen))
        while block.lines and block.tokens > room:
            block = self._shorter(block)
        return block

    def _rendered(self, section: Section, lines: list[CountedLine]) -> _SectionBlock:
        text = _fenced(section, [line.text for line in lines])
        return _SectionBlock(section, text, lines, self._count_block(text))

    def _shorter(self, block: _SectionBlock) -> _SectionBlock:
        """Return a block without its least line."""
        least = max(block.lines, key=_RANK)
        self._left_out.append(LeftOut(block.section.name, least.unit.id, "budget"))
        lines = [line for line in block.lines if line.place != least.place]
        return self._rendered(block.section, lines)

    def _message(self, blocks: Iterable[_SectionBlock]) -> Message:
        return user_message(self._policy, _SEPARATOR.join(block.text for block in blocks))

    def _tokens_of(self, blocks: list[_SectionBlock]) -> int:
        """Return the tokens of blocks in one message."""
        if len(blocks) == 1:
            return blocks[0].tokens
        return self._count_block(_SEPARATOR.join(block.text for block in blocks)) if blocks else 0

    def _leave_out_shown(self, turn: Iterable[Section], stable: Iterable[_SectionBlock]) -> None:
        """Leave out memories that the stable sections show."""
        shown = {line.unit.key for block in stable for line in block.lines}
        for section in turn:
            if section.kind == "memories":
                lines = self._lines[section.name]
                again = {line.place for line in lines if line.unit.key in shown}
                self._leave_out(section, again)

    def _repeated(
        self, turn: Iterable[Section], blocks: Iterable[_SectionBlock], context: Context | None
    ) -> dict[str, set[int]]:
        """Return the places of evidence that memories in the blocks, or messages, say as well.

        Of equal passages the best is kept.
        """
        evidence = [each for each in turn if each.kind == "evidence" and self._lines[each.name]]
        if not evidence:
            return {}
        memories = [block for block in blocks if block.section.kind == "memories"]
        said = {line.unit.text.strip() for block in memories for line in block.lines}
        said |= {text.strip() for text in _texts([] if context is None else context.messages)}
        found: dict[str, set[int]] = {}
        for section in evidence:
            for line in sorted(self._lines[section.name], key=_RANK):
                text = line.unit.text.strip()
                if text in said:
                    found.setdefault(section.name, set()).add(line.place)
                said.add(text)
        return found

    def _leave_out(self, section: Section, places: set[int]) -> None:
        """Leave out lines as duplicates."""
        lines = self._lines[section.name]
        self._left_out += [
            LeftOut(section.name, line.unit.id, "duplicate")
            for line in lines
            if line.place in places
        ]
        self._lines[section.name] = [line for line in lines if line.place not in places]

    # --- the history ------------------------------------------------------------------------------

    def _context(
        self, room: int, turn: list[Section], least: Mapping[str, int], fixed: Mapping[str, int]
    ) -> Context | None:
        """Return the context of the history within its share of a room.

        A steady share does not depend on what the sections of this turn and its user say. It is at
        least half of the room: sections of which nobody said a budget seldom fill theirs.

        Raises:
            ContextOverflowError: its smallest legal form does not fit.
        """
        source, steady = self._contents.history, self._contents.steady
        if source is None:
            return None
        user = fixed.get("user", 0) if steady else 0
        wants = [each.budget_tokens if steady else self._want(each) for each in turn]
        share = shares(room + user, [*wants, room + user])[-1]
        share = max(share, (room + user) // 2, self._history_least())
        kept = sum(least[each.name] for each in turn)
        limit = max(min(share - user, room - kept), self._history_least(), 1)
        return self._context_or_more(limit, room, share // _STEPS if steady else 0, fixed)

    def _context_or_more(
        self, limit: int, room: int, step: int, fixed: Mapping[str, int]
    ) -> Context:
        """Return the context of at most ``limit`` tokens, else the smallest within a room.

        Raises:
            ContextOverflowError: the smallest does not fit either.
        """
        try:
            return self._context_within(max(limit, 1), step)
        except ContextOverflowError as error:
            needed = error.needed_tokens or 0
            if needed <= limit or needed > room:
                beside = self._contents.budget - room - sum(fixed.values())
                self._need_room({**fixed, "sections": beside, "history": needed})
                raise
        return self._context_within(room, 0)  # the sections of this turn give way

    def _context_within(self, limit: int, step: int) -> Context:
        """Return the context of at most some tokens; with a step, its cut moves by such steps.

        Raises:
            ContextOverflowError
        """
        source, counter = self._contents.history, self._contents.counter
        assert source is not None  # noqa: S101 - checked by the caller
        if isinstance(source, Sequence):
            messages = convert(json_copy(source, "history"), to=self._policy).messages
            whole = sum(count_message(message, counter) for message in messages)
            budget = self._stepped(whole, limit, step)
            try:
                return fit(messages, budget, policy=self._policy, counter=counter)
            except ContextOverflowError:
                if budget == limit:
                    raise
            return fit(messages, limit, policy=self._policy, counter=counter)
        if step and source.counter == counter.id:
            budget = self._stepped(source.pressure().tokens, limit, step)
            if budget < limit:
                try:
                    return self._session_context(source, budget)
                except ContextOverflowError:  # its newest turn is larger: no cut is steady
                    return self._session_context(source, limit)
        return self._session_context(source, limit)

    def _stepped(self, whole: int, limit: int, step: int) -> int:
        return max(stepped(whole, limit, step), min(limit, self._history_least()))

    def _session_context(self, source: HistorySource, limit: int) -> Context:
        """Return a session's context of at most some tokens by the payload's counter.

        Raises:
            ContextOverflowError
        """
        if source.counter == self._contents.counter.id:
            return source.context(limit, format=self._policy.name)
        asked, is_least = limit, False
        while True:
            try:
                found = source.context(asked, format=self._policy.name)
            except ContextOverflowError as error:  # in the session's own tokens
                if is_least or not error.needed_tokens:
                    raise
                asked, is_least = error.needed_tokens, True
                continue
            tokens = sum(count_message(each, self._contents.counter) for each in found.messages)
            if tokens <= limit:
                return replace(found, tokens=tokens)
            if is_least:
                msg = f"the smallest legal context needs {tokens} tokens, and there are {limit}"
                raise ContextOverflowError(msg, needed_tokens=tokens, budget_tokens=limit)
            asked = max(min(asked - 1, found.tokens - 1, found.tokens * limit // tokens), 1)

    # --- the whole --------------------------------------------------------------------------------

    def _composed(self, chosen: _Chosen) -> AssembledPayload:
        """Put all parts into their places, and say where each unit is."""
        user, fixed, examples, stable, context, blocks = chosen
        history = [] if context is None else list(context.messages)
        kinds = [int(classify(message)[0]) for message in history]
        pins = next((at for at, kind in enumerate(kinds) if kind != ItemKind.SYSTEM), len(kinds))
        messages: list[Message] = []
        parts: list[PayloadPart | _Placed] = []
        system = self._system(history[:pins], fixed, messages, parts)
        for each in examples:
            told = {"messages": len(each.messages)}
            parts.append(
                PayloadPart(each.section, each.unit, len(messages), 0, 0, told, "operator",
                            each.tokens)
            )  # fmt: skip
            messages += each.messages
        self._place(stable, messages, parts)
        first = len(messages)
        tail = history[pins:] + ([] if user is None else [user])
        kinds = kinds[pins:] + ([] if user is None else [int(ItemKind.USER)])
        is_open = context is not None and context.open_calls > 0 and user is None
        place = turn_place(kinds, is_open=is_open)
        if context is not None and len(history) > pins:
            parts.append(self._history_part(context, first + (place == 0 and bool(blocks))))
        messages += tail[:place]
        end = len(messages)
        self._place(blocks, messages, parts)
        messages += tail[place:]
        tokens = sum(fixed.values()) + sum(each.tokens for each in examples)
        tokens += 0 if context is None else context.tokens
        tokens += self._tokens_of(stable) + self._tokens_of(blocks)
        breakpoints = sorted({first, end} - {0})
        rendered = self._rendered_legally(messages, chosen)
        moved: Callable[[int], int] | None = None
        if rendered is not None:
            tokens += self._difference(messages, rendered.messages)
            messages, moved = rendered.messages, _moved(rendered.sources)
            breakpoints = [moved(at - 1) + 1 for at in breakpoints]
        return AssembledPayload(
            self._policy.name,
            messages,
            system,
            json_copy(self._contents.tools, "tools"),
            tokens,
            self._contents.budget,
            self._uses(chosen),
            tuple(_places(parts, moved)),
            tuple(self._left_out),
            tuple(breakpoints),
            context,
        )

    def _difference(self, before: list[Message], after: list[Message]) -> int:
        """Return by how many tokens messages grow where they are not the same objects."""
        counter, kept = self._contents.counter, {id(each) for each in before}
        shown = {id(each) for each in after}
        more = sum(count_message(each, counter) for each in after if id(each) not in kept)
        return more - sum(count_message(each, counter) for each in before if id(each) not in shown)

    def _place(
        self,
        blocks: list[_SectionBlock],
        messages: list[Message],
        parts: list[PayloadPart | _Placed],
    ) -> None:
        """Append the message of some blocks, and their places."""
        at = 0
        for block in blocks:
            parts.append(_Placed(block, len(messages), at))
            at += len(block.text) + len(_SEPARATOR)
        if blocks:
            messages.append(self._message(blocks))

    def _system(
        self,
        pins: list[Message],
        fixed: Mapping[str, int],
        messages: list[Message],
        parts: list[PayloadPart | _Placed],
    ) -> Any:
        """Place instructions and pins; return the system prompt if it stands beside messages."""
        wire, at = self._policy.wire, 0
        instructions = self._contents.instructions
        for name, text in instructions.items():
            index = len(messages) if wire in ("chat", "langchain") else None
            start = at if index is None else 0
            stop = start + len(text)
            parts.append(PayloadPart(name, name, index, start, stop, {}, "operator", fixed[name]))
            at = stop + (len(_SEPARATOR) if wire == "responses" else 0)
            if index is not None:
                messages.append(self._instruction(text))
        if wire in ("chat", "langchain", "responses"):
            messages += pins
            return _SEPARATOR.join(instructions.values()) or None if wire == "responses" else None
        typed = {"type": "text"} if wire == "anthropic" else {}
        blocks: list[Any] = [{**typed, "text": text} for text in instructions.values()]
        for pin in pins:
            body = pin.get("content" if wire == "anthropic" else "parts")
            blocks += [{**typed, "text": body}] if isinstance(body, str) else body or []
        if not blocks:
            return None
        return blocks if wire == "anthropic" else {"parts": blocks}

    def _history_part(self, context: Context, at: int) -> PayloadPart:
        """Return where the history is: it is one part, for the items from its cut on."""
        told: dict[str, Any] = {"from": context.cut, "omitted": context.omitted}
        source = self._contents.history
        if source is not None and not isinstance(source, Sequence):
            told["session"] = source.id
        return PayloadPart("history", "history", at, 0, 0, told, "user", context.tokens)

    def _rendered_legally(self, messages: list[Message], chosen: _Chosen) -> Rendered | None:
        """Return messages that are legal together; None if they are.

        An example may have call ids of the history, and calls of the history are open in front of
        the user's message.
        """
        shown = [message for each in chosen.examples for message in each.messages]
        has_calls = any(classify(message)[1] for message in shown)
        context = chosen.context
        is_open = chosen.user is not None and context is not None and context.open_calls > 0
        if not is_open and not (has_calls and pair_violations(messages, self._policy)):
            return None
        entries = [WireItem(at, message) for at, message in enumerate(messages)]
        return render(entries, self._policy)

    def _uses(self, chosen: _Chosen) -> dict[str, SectionUse]:
        _, fixed, examples, stable, context, turn = chosen
        found = {name: SectionUse(tokens, 1, 0) for name, tokens in fixed.items()}
        found |= {name: SectionUse(0, 0, 0) for name in self._contents.sections}
        for block in (*stable, *turn):
            found[block.section.name] = SectionUse(block.tokens, len(block.lines), 0)
        for each in examples:
            tokens, units, _ = found[each.section]
            found[each.section] = SectionUse(tokens + each.tokens, units + 1, 0)
        if context is not None:
            found["history"] = SectionUse(context.tokens, len(context.messages), context.omitted)
        for left in self._left_out:
            use = found[left.section]
            found[left.section] = use._replace(left_out=use.left_out + 1)
        return found


def _places(
    parts: Iterable[PayloadPart | _Placed], moved: Callable[[int], int] | None
) -> Iterator[PayloadPart]:
    """Yield the places of all units, after messages moved; None: none did."""
    for part in parts:
        if isinstance(part, _Placed):
            at = part.message if moved is None else moved(part.message)
            yield from part.block.parts(at, part.at)
        elif part.message is None or moved is None:
            yield part
        else:
            yield part._replace(message=moved(part.message))


def _moved(sources: Sequence[int | None]) -> Callable[[int], int]:
    """Return where a message is after rendering; one that was altered follows those before it."""
    places = {source: at for at, source in enumerate(sources) if source is not None}

    def moved(at: int) -> int:
        if at in places:
            return places[at]
        return max((place + 1 for old, place in places.items() if old < at), default=0)

    return moved


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in the contents of messages."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            todo += [each[name] for name in _CONTENTS if name in each]
        elif isinstance(each, list):
            todo += each


_CONTENTS: Final = (
    "content", "parts", "text", "output", "kwargs", "data", "functionResponse", "response",
)  # fmt: skip


def _marked(made: AssembledPayload, counter: TokenCounter) -> AssembledPayload:
    """Return a payload with marks for Anthropic's prompt cache, and with their tokens.

    Marked are the ends of the tools, of the system prompt and of what stays; together with the
    marks that are there already, at most as many as the provider takes.
    """
    tools, system, messages = list(made.tools), made.system, list(made.messages)
    left = _MARKS_MAX - str([tools, system, messages]).count("'cache_control':")
    tokens = made.tokens
    if left > 0 and tools and _MARK.keys().isdisjoint(tools[-1]):
        tokens -= counter.count_tools(tools)
        tools[-1] = {**tools[-1], **_MARK}
        tokens += counter.count_tools(tools)
        left -= 1
    if left > 0 and system and _MARK.keys().isdisjoint(system[-1]):
        system = [*system[:-1], {**system[-1], **_MARK}]
        left -= 1
    for at in made.breakpoints:
        message = messages[at - 1]
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        last = blocks[-1] if blocks else None
        if (
            left > 0
            and isinstance(last, Mapping)
            and last.get("type") in _MARKED
            and "cache_control" not in last
        ):
            marked = {**message, "content": [*(blocks or ())[:-1], {**last, **_MARK}]}
            tokens += count_message(marked, counter) - count_message(message, counter)
            messages[at - 1] = marked
            left -= 1
    return replace(made, tools=tools, system=system, messages=messages, tokens=tokens)


_MARK: Final = {"cache_control": {"type": "ephemeral"}}
_MARKS_MAX: Final = 4
"""Most marks of a request; more are refused."""
_MARKED: Final = ("text", "image", "document", "tool_use", "tool_result")
"""Blocks that may have a mark: not thinking, which has to stay as it came."""
