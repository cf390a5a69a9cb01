"""Facts of an item, in any wire format: its kind, the calls that it makes, those that it answers.

Plain Python, written from the providers' references. It shares no code with memcore's own reading
of items, which is tested against it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "ABANDON",
    "ASSISTANT",
    "BY_NAME",
    "CALL",
    "EVENT",
    "FUNCTION",
    "ID_CHARS_MAX",
    "MIXED",
    "MODEL",
    "OPAQUE",
    "PROGRAM",
    "REASONING",
    "RESULT",
    "SECOND",
    "SERVER",
    "SYSTEM",
    "THINKING",
    "TURN",
    "USER",
    "Event",
    "Facts",
    "Key",
    "classify",
    "dicts_at",
    "plain",
]


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
    """Facts of an item: its kind, its calls, its answers and references, its flags."""

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
    """Facts of an item of any wire format; an unknown dict is OPAQUE, never an error.

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
