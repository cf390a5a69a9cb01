"""The specification of memcore._fast in plain Python: slow, obvious, written from the reference.

``classify`` says what an item is. ``OracleLedger`` answers every question of ``_fast.Ledger`` from
definitions, by brute force. ``seed_rule_cut`` is the plain rule that memcore was asked to match.
``brute_force_violations`` says what is illegal in a list of messages that goes to a provider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Kinds
OPAQUE, SYSTEM, USER, ASSISTANT, CALL, RESULT, REASONING, EVENT = range(8)
# Flags
MODEL, MIXED, THINKING, ABANDON, TURN = 1, 2, 4, 8, 16
# Classes of ids
FUNCTION, CUSTOM, LOCAL_SHELL, SHELL, APPLY_PATCH, COMPUTER = range(6)
TOOL_SEARCH, PROGRAM, MCP_APPROVAL, SERVER = range(6, 10)
BY_NAME, SECOND = 0x40, 0x80
ID_CHARS_MAX = {"openai_chat": 40, "openai_responses": 64}

Key = tuple[int, str]


class Facts(NamedTuple):
    """What the ledger knows of an item."""

    kind: int
    opens: tuple[Key, ...] = ()
    closes: tuple[Key, ...] = ()
    flags: int = 0


class Event(NamedTuple):
    """An entry of the log that is no message; it gives up the calls with these keys."""

    abandons: tuple[Key, ...] = ()


# --- what an item is ------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The value as JSON gives it back: subclasses are what they derive from, tuples are lists."""
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, dict):
        return {
            plain(key): plain(entry) for key, entry in dict.items(value) if isinstance(key, str)
        }
    if isinstance(value, list):
        return [plain(part) for part in list.__iter__(value)]
    if isinstance(value, tuple):
        return [plain(part) for part in tuple.__iter__(value)]
    return value


def text_at(item: dict[str, Any], *names: str) -> str | None:
    """The first non-empty string under these names. An empty id is no id."""
    for name in names:
        value = item.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def dicts_at(item: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The dicts in the list under a name."""
    value = item.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def dict_at(item: dict[str, Any], *names: str) -> dict[str, Any] | None:
    """The first dict under these names."""
    return next((item[name] for name in names if isinstance(item.get(name), dict)), None)


class Found:
    """The keys and flags that are collected while an item is read."""

    def __init__(self) -> None:
        self.opens: list[Key] = []
        self.closes: list[Key] = []
        self.flags = 0

    def open(self, cls: int, key: str | None) -> None:
        """The item calls."""
        if key is not None:
            self.opens.append((cls, key))

    def close(self, cls: int, key: str | None) -> None:
        """The item answers or refers."""
        if key is not None:
            self.closes.append((cls, key))

    def facts(self, kind: int) -> Facts:
        """An id that is called twice is one call; without an id, each is one. Results all count."""
        model = MODEL if kind in {ASSISTANT, CALL, REASONING} else 0
        return Facts(kind, _once(self.opens), tuple(self.closes), self.flags | model)


def _once(keys: list[Key]) -> tuple[Key, ...]:
    return tuple(key for i, key in enumerate(keys) if key[0] & BY_NAME or keys.index(key) == i)


def classify(item: dict[str, Any]) -> Facts:
    """What an item of any wire format is; an unknown dict is OPAQUE, never an error.

    Decisions where the formats leave it open:

    * A ``role`` decides before a ``type``, except for LangChain's ``"type": "chat"``.
    * ``custom_tool_call_output`` answers ``custom_tool_call`` only, also where a custom tool named
      apply_patch plays the part of ``apply_patch_call``: classes never mix.
    * An empty or missing id is no id. Only Gemini calls, ``function_call`` of chat and client tool
      searches bind without one; any other result without an id answers nothing.
    * A Gemini result with an id answers the call with that id, one without the call by name.
    * System and developer messages are SYSTEM whatever they hold.
    """
    item = plain(item)
    role, kind = text_at(item, "role"), text_at(item, "type")
    if role is not None and kind != "chat":
        return _message(item, role)
    if kind is None:
        return Facts(OPAQUE)
    if kind == "constructor" and "lc" in item:
        return _constructor(item)
    return _langchain(item, kind) or _responses(item, kind)


def _message(item: dict[str, Any], role: str) -> Facts:
    found = Found()
    model = role in {"assistant", "model", "ai"}
    if role in {"system", "developer"}:
        return Facts(SYSTEM)
    if isinstance(item.get("parts"), list):
        _gemini_parts(item["parts"], found, model=model)
    elif role == "tool":
        found.close(FUNCTION, text_at(item, "tool_call_id"))
        return found.facts(RESULT)
    elif role == "function":
        found.close(FUNCTION | BY_NAME, text_at(item, "name"))
        return found.facts(RESULT)
    else:
        if model:
            _chat_calls(item, found)
        if isinstance(item.get("content"), list):
            _blocks(item["content"], found, model=model)
    if model:
        _settle(found)
        found.flags &= THINKING
        return found.facts(ASSISTANT)
    if found.closes:
        found.flags = found.flags & MIXED | TURN
        return found.facts(RESULT)
    return Facts(USER if role in {"user", "human"} else OPAQUE)


def _chat_calls(item: dict[str, Any], found: Found) -> None:
    for call in dicts_at(item, "tool_calls") + dicts_at(item, "invalid_tool_calls"):
        found.open(FUNCTION, text_at(call, "id"))
    single = dict_at(item, "function_call")
    if single is not None:
        found.open(FUNCTION | BY_NAME, text_at(single, "name"))


def _blocks(blocks: list[Any], found: Found, *, model: bool) -> None:
    for block in blocks:
        kind = text_at(block, "type") if isinstance(block, dict) else None
        if kind is None:
            found.flags |= MIXED
        elif not model:
            if kind == "tool_result":
                found.close(FUNCTION, text_at(block, "tool_use_id"))
            else:
                found.flags |= MIXED
        elif kind in {"tool_use", "tool_call", "invalid_tool_call"}:
            found.open(FUNCTION, text_at(block, "id"))
        elif kind in {"server_tool_use", "mcp_tool_use", "server_tool_call"}:
            found.open(SERVER, text_at(block, "id"))
        elif kind in {"thinking", "redacted_thinking", "reasoning"}:
            found.flags |= THINKING
        elif kind.endswith("_tool_result"):
            name = "tool_call_id" if kind == "server_tool_result" else "tool_use_id"
            found.close(SERVER, text_at(block, name))


def _gemini_parts(parts: list[Any], found: Found, *, model: bool) -> None:
    names = (
        ("functionCall", "function_call") if model else ("functionResponse", "function_response")
    )
    add = found.open if model else found.close
    for part in parts:
        entry = dict_at(part, *names) if isinstance(part, dict) else None
        if entry is not None:
            key = text_at(entry, "id")
            if key is not None:
                add(FUNCTION, key)
            else:
                add(FUNCTION | BY_NAME, text_at(entry, "name"))
        elif isinstance(part, dict) and part.get("thought") is True:
            found.flags |= THINKING
        else:
            found.flags |= MIXED


def _settle(found: Found) -> None:
    """A server tool that was answered within its own message is neither a call nor a result."""
    both = set(found.opens) & set(found.closes)
    found.opens = [key for key in found.opens if key not in both]
    found.closes = [key for key in found.closes if key not in both]


CHUNKS = {
    "HumanMessageChunk": "human",
    "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool",
    "FunctionMessageChunk": "function",
    "ChatMessageChunk": "chat",
    "AIMessageChunk": "ai",
}


def _langchain(item: dict[str, Any], kind: str) -> Facts | None:  # noqa: PLR0911 - a kind each
    body = item["data"] if isinstance(item.get("data"), dict) else item
    found = Found()
    match CHUNKS.get(kind, kind):
        case "human":
            return Facts(USER)
        case "system":
            return Facts(SYSTEM)
        case "tool":
            found.close(FUNCTION, text_at(body, "tool_call_id"))
            return found.facts(RESULT)
        case "function":
            found.close(FUNCTION | BY_NAME, text_at(body, "name"))
            return found.facts(RESULT)
        case "chat":
            role = text_at(body, "role")
            return Facts(OPAQUE) if role is None else _message(body, role)
        case "ai":
            return _langchain_ai(body)
    return None


def _langchain_ai(body: dict[str, Any]) -> Facts:
    found = Found()
    _chat_calls(body, found)
    if isinstance(body.get("content"), list):
        _blocks(body["content"], found, model=True)
        _settle(found)
    if not found.opens:
        _chat_calls(dict_at(body, "additional_kwargs") or {}, found)
    found.flags &= THINKING
    return found.facts(ASSISTANT)


def _constructor(item: dict[str, Any]) -> Facts:
    path, body = item.get("id"), dict_at(item, "kwargs")
    if isinstance(path, list) and path and isinstance(path[-1], str) and body is not None:
        name = path[-1].removesuffix("Chunk")
        if name.endswith("Message"):
            return _langchain(body, name.removesuffix("Message").lower()) or Facts(OPAQUE)
    return Facts(OPAQUE)


PAIRS = {
    "function_call": (FUNCTION, "function_call_output"),
    "custom_tool_call": (CUSTOM, "custom_tool_call_output"),
    "local_shell_call": (LOCAL_SHELL, "local_shell_call_output"),
    "shell_call": (SHELL, "shell_call_output"),
    "apply_patch_call": (APPLY_PATCH, "apply_patch_call_output"),
    "computer_call": (COMPUTER, "computer_call_output"),
    "tool_search_call": (TOOL_SEARCH, "tool_search_output"),
    "program": (PROGRAM, "program_output"),
    "mcp_approval_request": (MCP_APPROVAL, "mcp_approval_response"),
}
OUTPUTS = {output: cls for cls, output in PAIRS.values()}
SELF_CONTAINED = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
}


def _responses(item: dict[str, Any], kind: str) -> Facts:  # noqa: PLR0911 - a kind each
    if kind == "reasoning":
        return Facts(REASONING, flags=MODEL)
    if kind in SELF_CONTAINED:
        return Facts(ASSISTANT, flags=MODEL)
    if kind in {"tool_search_call", "tool_search_output"} and item.get("execution") == "server":
        return Facts(ASSISTANT, flags=MODEL)
    found = Found()
    if kind == "mcp_call":
        found.close(MCP_APPROVAL | SECOND, text_at(item, "approval_request_id"))
        return found.facts(ASSISTANT)
    if kind in PAIRS:
        return _responses_call(item, PAIRS[kind][0], found)
    if kind not in OUTPUTS:
        return Facts(OPAQUE)
    cls = OUTPUTS[kind]
    call_id = text_at(item, "approval_request_id" if cls == MCP_APPROVAL else "call_id")
    if cls == TOOL_SEARCH and call_id is None:
        found.close(cls | BY_NAME, "tool_search")
    elif cls == LOCAL_SHELL:  # the schema says id, the SDK writes call_id
        found.close(cls, call_id or text_at(item, "id"))
    else:
        found.close(cls, call_id)
    return found.facts(RESULT)


def _responses_call(item: dict[str, Any], cls: int, found: Found) -> Facts:
    call_id, own_id = text_at(item, "call_id"), text_at(item, "id")
    if cls == MCP_APPROVAL:
        found.open(cls, own_id)
    elif cls == LOCAL_SHELL:
        found.open(cls, call_id or own_id)
        if call_id and own_id != call_id:
            found.open(cls | SECOND, own_id)
    elif cls == TOOL_SEARCH and call_id is None:
        found.open(cls | BY_NAME, "tool_search")
    else:
        found.open(cls, call_id)
    caller = dict_at(item, "caller")
    if caller is not None and caller.get("type") == "program":
        found.close(PROGRAM | SECOND, text_at(caller, "caller_id"))
    return found.facts(CALL)


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


# --- what a provider refuses ----------------------------------------------------------------------

POLICIES = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")


class Violation(NamedTuple):
    """Message number and what is wrong with it."""

    at: int
    rule: str


def brute_force_violations(messages: list[dict[str, Any]], policy: str) -> list[Violation]:
    """What is illegal in a rendered list of messages.

    Calls at the end that nothing but results follows (for Responses: nothing but calls and results)
    may be open. A call without an id is no call, except where it binds by name.
    """
    items = [classify(message) for message in messages]
    found = list(_bad_reasoning(items))
    found += _long_ids(items, ID_CHARS_MAX.get(policy))
    if policy in {"anthropic", "gemini"}:
        found += _bad_turns(messages, items)
        found += _bad_server_calls(items)
        found += _bad_start(items)
        if policy == "anthropic":
            found += _repeated_ids(items)
    elif policy == "openai_responses":
        found += _bad_anywhere(items)
    else:
        found += _bad_adjacent(items)
        found += _bad_server_calls(items)
    return sorted(found)


def _long_ids(items: list[Facts], most: int | None) -> Iterable[Violation]:
    for i, item in enumerate(items):
        if most and any(len(name) > most for cls, name in item.opens if not cls & BY_NAME):
            yield Violation(i, "a call id that is too long")


def _bad_reasoning(items: list[Facts]) -> Iterable[Violation]:
    for i, item in enumerate(items):
        if item.kind == REASONING and not (i + 1 < len(items) and items[i + 1].flags & MODEL):
            yield Violation(i, "reasoning without the item it belongs to")


def _own(keys: tuple[Key, ...]) -> Counter[Key]:
    """Keys that pair by position: server tools answer themselves, references answer nothing."""
    return Counter(key for key in keys if key[0] & 0x3F != SERVER and not key[0] & SECOND)


def _bad_adjacent(items: list[Facts]) -> Iterable[Violation]:
    """Chat: the results of a message are the run of results right behind it."""
    waiting: Counter[Key] = Counter()
    for i, item in enumerate(items):
        if item.kind != RESULT:
            if waiting:
                yield Violation(i, "something else than results behind calls")
            waiting = _own(item.opens)
            continue
        if not item.closes:
            yield Violation(i, "a result without an id")
        for key in item.closes:
            if waiting[key] <= 0:
                yield Violation(i, "a result that its call is not right before")
            waiting -= Counter([key])


def _bad_turns(messages: list[dict[str, Any]], items: list[Facts]) -> Iterable[Violation]:
    """Anthropic and Gemini: the next message answers all calls, results first."""
    calls: Counter[Key] = Counter()
    for i, item in enumerate(items):
        results = _own(item.closes)
        if results != calls:
            yield Violation(i, "results that are not those of the calls right before")
        if item.kind == RESULT and not item.closes:
            yield Violation(i, "a result without an id")
        if item.kind == RESULT and not _results_first(messages[i]):
            yield Violation(i, "other content before a result")
        calls = _own(item.opens)


def _results_first(message: dict[str, Any]) -> bool:
    parts = message.get("parts", message.get("content"))
    order = [
        isinstance(part, dict)
        and (
            part.get("type") == "tool_result"
            or "functionResponse" in part
            or "function_response" in part
        )
        for part in (parts if isinstance(parts, (list, tuple)) else [])
    ]
    return order == sorted(order, reverse=True)


def _bad_server_calls(items: list[Facts]) -> Iterable[Violation]:
    """A server tool is answered in its message or in a later one of the model."""
    waiting: set[Key] = set()
    for i, item in enumerate(items):
        for key in item.closes:
            if key[0] & 0x3F == SERVER:
                if key not in waiting:
                    yield Violation(i, "a server result without its call")
                waiting.discard(key)
        if waiting and not item.flags & MODEL:
            yield Violation(i, "a server call without its result")
        waiting |= {key for key in item.opens if key[0] & 0x3F == SERVER}


def _bad_start(items: list[Facts]) -> Iterable[Violation]:
    first = next((i for i, item in enumerate(items) if item.kind != SYSTEM), None)
    if first is not None and items[first].kind != USER:
        yield Violation(first, "start: not a message of the user")


def _repeated_ids(items: list[Facts]) -> Iterable[Violation]:
    seen: set[Key] = set()
    for i, item in enumerate(items):
        if seen & set(item.opens):
            yield Violation(i, "an id that came before")
        seen |= set(item.opens)


def _bad_anywhere(items: list[Facts]) -> Iterable[Violation]:
    """Responses: a result may come anywhere behind its call, once."""
    waiting: list[tuple[int, list[Key]]] = []
    for i, item in enumerate(items):
        for key in item.closes:
            match = [call for call in waiting if (key[0] & ~SECOND, key[1]) in call[1]]
            if key[0] & SECOND:
                if not any((key[0] & ~SECOND, key[1]) in before.opens for before in items[:i]):
                    yield Violation(i, "a child without its program")
            elif match:
                waiting.remove(match[0])
            else:
                yield Violation(i, "a result without an open call")
        if item.kind == RESULT and not item.closes:
            yield Violation(i, "a result without an id")
        names = [(cls & ~SECOND, name) for cls, name in item.opens]
        if any(cls & SECOND for cls, _ in item.opens):
            waiting.append((i, names))
        else:
            waiting += [(i, [name]) for name in names]
    for i, names in waiting:
        # A program runs at its provider: what the model says behind it is its continuation.
        passing = (
            {USER, SYSTEM, OPAQUE} if names[0][0] == PROGRAM else set(range(8)) - {CALL, RESULT}
        )
        if any(item.kind in passing for item in items[i + 1 :]):
            yield Violation(i, "a call without its result")
