"""Form of messages: the roles, fields and types of content that each wire format has.

The tables follow the request types of the providers' own packages, except that values which these
spell out and add to between releases (the detail of an image, a status) are any string. Roles and
types of blocks and items are not: no provider takes one that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from memcore.model import Message
from memcore.options import closest

__all__ = [
    "fitted",
    "form_faults",
    "unreadable_fault",
]


# --- Kinds of values ------------------------------------------------------------------------------


class FieldKinds(NamedTuple):
    """Kind of an object: the kinds of its fields."""

    needed: Mapping[str, Kind]
    allowed: Mapping[str, Kind] = {}
    is_open: bool = False
    """True if other fields are allowed, too."""


class ListOf(NamedTuple):
    """Kind of a list."""

    entry: Kind


class Tagged(NamedTuple):
    """Kind of an object whose fields depend on the text in one of them."""

    tag: str
    kinds: Mapping[str, FieldKinds]


Kind: TypeAlias = "type | FieldKinds | ListOf | Tagged | tuple[Kind, ...] | None"
"""``object`` is anything; None is null; a tuple lists alternatives."""

_NAMES: Final[dict[Any, str]] = {
    None: "null", str: "a string", bool: "true or false", int: "a whole number",
    float: "a number", dict: "an object", list: "a list",
}  # fmt: skip
_SHOWN_CHARS: Final = 40
_NAMED_MAX: Final = 10


def _is_of(value: Any, kind: Kind) -> bool:
    """Return whether the outermost type of a value is that of a kind, which is no tuple."""
    if kind is None:
        return value is None
    if isinstance(kind, ListOf) or kind is list:
        return isinstance(value, list | tuple)
    if isinstance(kind, FieldKinds | Tagged) or kind is dict:
        return isinstance(value, Mapping)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind)  # type: ignore[arg-type]


def _faults(value: Any, kind: Kind, path: str) -> Iterator[str]:
    """Yield what is wrong with a value, each with its path."""
    kinds: Any = kind if type(kind) is tuple else (kind,)
    found: Any = next((each for each in kinds if _is_of(value, each)), ...)
    if found is ...:
        wanted = " or ".join(dict.fromkeys(map(_name, kinds)))
        yield f"{path}: expected {wanted}, got {_shown(value)}"
    elif isinstance(found, ListOf):
        for at, entry in enumerate(value):
            yield from _faults(entry, found.entry, f"{path}[{at}]")
    elif isinstance(found, Tagged):
        tag = value.get(found.tag)
        fields = found.kinds.get(tag) if isinstance(tag, str) else None
        if fields is None:
            yield _unknown(f"{path}.{found.tag}", tag, found.kinds)
        else:
            yield from _field_faults(value, fields, f"{path}.")
    elif isinstance(found, FieldKinds):
        yield from _field_faults(value, found, f"{path}.")


def _field_faults(value: Mapping[str, Any], fields: FieldKinds, prefix: str) -> Iterator[str]:
    for name, kind in fields.needed.items():
        if name in value:
            yield from _faults(value[name], kind, prefix + name)
        else:
            yield f"{prefix}{name}: is missing"
    for name, entry in value.items():
        if name in fields.needed:
            continue
        if name in fields.allowed:
            yield from _faults(entry, fields.allowed[name], prefix + name)
        elif not fields.is_open:
            names = (*fields.needed, *fields.allowed)
            yield f"{prefix}{_plain(name)}: is not a field{_meant(name, names)}"


def _name(kind: Kind) -> str:
    if isinstance(kind, ListOf):
        return "a list"
    return "an object" if isinstance(kind, FieldKinds | Tagged) else _NAMES[kind]


def _unknown(path: str, value: Any, known: Mapping[str, Any]) -> str:
    """Describe a role or type that a format does not have."""
    more = ", …" if len(known) > _NAMED_MAX else ""
    names = ", ".join(list(known)[:_NAMED_MAX]) + more
    if value is None:
        return f"{path}: is missing; it is one of {names}"
    return f"{path}: expected one of {names}; got {_shown(value)}{_meant(value, known)}"


def _meant(value: Any, known: Any) -> str:
    near = closest(value[:_SHOWN_CHARS], known) if isinstance(value, str) else ()
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: Any) -> str:
    """A short, printable form of a value, which may be of any size."""
    if isinstance(value, str):
        cut = "…" if len(value) > _SHOWN_CHARS else ""
        return f"{value[:_SHOWN_CHARS]!r}{cut}"
    for kind in (None, bool, int, float, dict, list):
        if _is_of(value, kind):
            return str(value) if kind in (bool, float) else _NAMES[kind]
    return type(value).__name__


def _plain(name: object) -> str:
    is_short = isinstance(name, str) and len(name) <= _SHOWN_CHARS and name.isidentifier()
    return str(name) if is_short else _shown(name)


# --- OpenAI chat ----------------------------------------------------------------------------------

_OPEN: Final = FieldKinds({}, is_open=True)
_TEXT: Final = FieldKinds(
    {"type": str, "text": str}, {"prompt_cache_breakpoint": dict, "cache_control": (dict, None)}
)
_CACHED: Final[dict[str, Kind]] = {"prompt_cache_breakpoint": dict, "cache_control": (dict, None)}
_CHAT_TEXTS: Final = (str, ListOf(Tagged("type", {"text": _TEXT})))


def _linked(name: str) -> FieldKinds:
    """Return the kind of a block that names a medium by its URL."""
    return FieldKinds(
        {"type": str, name: FieldKinds({"url": str}, {"detail": str}, is_open=True)}, _CACHED
    )


_CHAT_USER: Final = {
    "text": _TEXT,
    "image_url": _linked("image_url"),
    "input_audio": FieldKinds(
        {"type": str, "input_audio": FieldKinds({"data": str, "format": str})}, _CACHED
    ),
    "file": FieldKinds(
        {
            "type": str,
            "file": FieldKinds(
                {}, {"file_data": str, "file_id": str, "filename": str, "format": str}
            ),
        },
        _CACHED,
    ),
    # Not OpenAI's own: OpenRouter and vLLM take them in this format.
    "video_url": _linked("video_url"),
    "audio_url": _linked("audio_url"),
}
_REFUSAL: Final = FieldKinds({"type": str, "refusal": str})
_CALLED: Final = FieldKinds({"name": str, "arguments": str})
_CHAT_CALLS: Final = Tagged(
    "type",
    {
        "function": FieldKinds({"id": str, "type": str, "function": _CALLED}, is_open=True),
        "custom": FieldKinds(
            {"id": str, "type": str, "custom": FieldKinds({"name": str, "input": str})},
            is_open=True,
        ),
    },
)
_CHAT_BESIDE: Final[dict[str, Kind]] = {"name": str, "cache_control": (dict, None)}
_CHAT_ASSISTANT: Final[dict[str, Kind]] = {
    "content": (str, None, ListOf(Tagged("type", {"text": _TEXT, "refusal": _REFUSAL}))),
    "refusal": (str, None),
    "audio": (FieldKinds({"id": str}, is_open=True), None),
    "tool_calls": ListOf(_CHAT_CALLS),
    "function_call": (_CALLED, None),
    "annotations": (list, None),
    # Fields of other providers that speak this format, for the model's reasoning and for caching.
    "reasoning": object,
    "reasoning_content": object,
    "reasoning_details": object,
    "thinking_blocks": object,
    "provider_specific_fields": object,
    "prefix": bool,
    "weight": int,
}
_CHAT: Final = {
    "system": FieldKinds({"role": str, "content": _CHAT_TEXTS}, _CHAT_BESIDE),
    "developer": FieldKinds({"role": str, "content": _CHAT_TEXTS}, _CHAT_BESIDE),
    "user": FieldKinds(
        {"role": str, "content": (str, ListOf(Tagged("type", _CHAT_USER)))}, _CHAT_BESIDE
    ),
    "assistant": FieldKinds({"role": str}, _CHAT_ASSISTANT | _CHAT_BESIDE),
    "tool": FieldKinds({"role": str, "content": _CHAT_TEXTS, "tool_call_id": str}, _CHAT_BESIDE),
    "function": FieldKinds({"role": str, "content": (str, None), "name": str}),
}


def _chat_faults(message: Message) -> Iterator[str]:
    yield from _role_faults(message, _CHAT)


def _role_faults(message: Message, roles: Mapping[str, FieldKinds]) -> Iterator[str]:
    role = message.get("role")
    fields = roles.get(role) if isinstance(role, str) else None
    if fields is None:
        yield _unknown("role", role, roles)
    else:
        yield from _field_faults(message, fields, "")


# --- OpenAI Responses -----------------------------------------------------------------------------

_MARK: Final = (dict, None)
_INPUT_BLOCKS: Final = {
    "input_text": FieldKinds({"type": str, "text": str}, {"prompt_cache_breakpoint": _MARK}),
    "input_image": FieldKinds(
        {"type": str},
        {
            "detail": (str, None), "file_id": (str, None), "image_url": (str, None),
            "prompt_cache_breakpoint": _MARK,
        },
    ),
    "input_file": FieldKinds(
        {"type": str},
        {
            "detail": str, "file_data": (str, None), "file_id": (str, None),
            "file_url": (str, None), "filename": (str, None), "prompt_cache_breakpoint": _MARK,
        },
    ),
}  # fmt: skip
_OUTPUT_BLOCKS: Final = {
    "output_text": FieldKinds(
        {"type": str, "text": str}, {"annotations": ListOf(dict), "logprobs": (ListOf(dict), None)}
    ),
    "refusal": _REFUSAL,
}
_RESPONSES_BESIDE: Final[dict[str, Kind]] = {
    "type": str, "id": (str, None), "status": (str, None), "phase": (str, None),
}  # fmt: skip
_INPUT: Final = FieldKinds(
    {"role": str, "content": (str, ListOf(Tagged("type", _INPUT_BLOCKS)))}, _RESPONSES_BESIDE
)
_RESPONSES_ROLES: Final = {
    "user": _INPUT,
    "system": _INPUT,
    "developer": _INPUT,
    "assistant": FieldKinds(
        {"role": str, "content": (str, ListOf(Tagged("type", _OUTPUT_BLOCKS | _INPUT_BLOCKS)))},
        _RESPONSES_BESIDE,
    ),
}
_ITEM: Final[dict[str, Kind]] = {"type": str}
_NOTED: Final[dict[str, Kind]] = {
    "id": (str, None), "status": (str, None), "caller": (dict, None), "created_by": (str, None),
}  # fmt: skip
_OUTPUT: Final = (str, ListOf(Tagged("type", _INPUT_BLOCKS)))
_SUMMARY: Final = ListOf(FieldKinds({"type": str, "text": str}))
_ANSWERED: Final = {**_ITEM, "call_id": str}


def _item(needed: Mapping[str, Kind], **allowed: Kind) -> FieldKinds:
    return FieldKinds({**_ITEM, **needed}, {**_NOTED, **allowed})


_RESPONSES_ITEMS: Final = {
    "function_call": _item(
        {"call_id": str, "name": str, "arguments": str}, **{"async": bool}, namespace=(str, None)
    ),
    "function_call_output": _item(
        {"output": _OUTPUT}, call_id=(str, None), name=(str, None), namespace=(str, None)
    ),
    "custom_tool_call": _item(
        {"call_id": str, "name": str, "input": str}, **{"async": bool}, namespace=(str, None)
    ),
    "custom_tool_call_output": _item({"call_id": str, "output": _OUTPUT}),
    "reasoning": _item(
        {"id": str, "summary": _SUMMARY},
        content=(_SUMMARY, None), encrypted_content=(str, None),
    ),
    "item_reference": _item({"id": str}),
    "computer_call": _item(
        {"call_id": str, "pending_safety_checks": ListOf(dict)},
        action=(dict, None), actions=(ListOf(dict), None),
    ),
    "computer_call_output": _item(
        {"call_id": str, "output": dict}, acknowledged_safety_checks=(ListOf(dict), None)
    ),
    "local_shell_call": _item({"id": str, "call_id": str, "action": dict, "status": str}),
    "local_shell_call_output": _item({"output": str}, call_id=(str, None)),
    "shell_call": _item({"call_id": str, "action": dict}, environment=(dict, None)),
    "shell_call_output": _item(
        {"call_id": str, "output": ListOf(dict)}, max_output_length=(int, None)
    ),
    "apply_patch_call": _item({"call_id": str, "operation": dict, "status": str}),
    "apply_patch_call_output": _item({"call_id": str, "status": str}, output=(str, None)),
    "file_search_call": _item(
        {"id": str, "queries": ListOf(str), "status": str}, results=(ListOf(dict), None)
    ),
    "web_search_call": _item({"id": str, "status": str}, action=(dict, None)),
    "image_generation_call": FieldKinds({**_ITEM, "id": str, "result": (str, None)}, is_open=True),
    "code_interpreter_call": _item(
        {
            "id": str, "code": (str, None), "container_id": str,
            "outputs": (ListOf(dict), None), "status": str,
        }
    ),
    "tool_search_call": _item(
        {"arguments": object}, call_id=(str, None), execution=(str, None)
    ),
    "tool_search_output": _item(
        {"tools": ListOf(dict)}, call_id=(str, None), execution=(str, None)
    ),
    "mcp_list_tools": _item(
        {"id": str, "server_label": str, "tools": ListOf(dict)}, error=object
    ),
    "mcp_approval_request": _item({"id": str, "arguments": str, "name": str, "server_label": str}),
    "mcp_approval_response": _item(
        {"approval_request_id": str, "approve": bool}, reason=(str, None)
    ),
    "mcp_call": _item(
        {"id": str, "arguments": str, "name": str, "server_label": str},
        approval_request_id=(str, None), error=object, output=(str, None),
    ),
    "program": _item({"id": str, "call_id": str, "code": str, "fingerprint": str}),
    "program_output": _item({"id": str, "call_id": str, "result": str, "status": str}),
    "compaction": _item({"encrypted_content": str}),
    "compaction_trigger": _item({}),
    "additional_tools": _item({"role": str, "tools": ListOf(dict)}),
    "configuration_update": _item({}, reasoning=dict, text=dict),
}  # fmt: skip


def _responses_faults(message: Message) -> Iterator[str]:
    kind = message.get("type")
    if kind == "message" or (kind is None and "role" in message):
        yield from _role_faults(message, _RESPONSES_ROLES)
    elif kind is None and "id" in message:  # a reference may go without its type
        yield from _field_faults({"type": "item_reference", **message}, _REFERENCE, "")
    else:
        fields = _RESPONSES_ITEMS.get(kind) if isinstance(kind, str) else None
        if fields is None:
            known = {"message": None, **_RESPONSES_ITEMS}
            yield _unknown("role or type" if kind is None else "type", kind, known)
        else:
            yield from _field_faults(message, fields, "")


_REFERENCE: Final = FieldKinds({"type": (str, None), "id": str})


# --- Anthropic ------------------------------------------------------------------------------------

_CACHE: Final[dict[str, Kind]] = {"cache_control": (dict, None)}
_USED: Final[dict[str, Kind]] = {**_CACHE, "caller": (dict, None), "toolset_name": (str, None)}


def _block(allowed: Mapping[str, Kind] = _CACHE, **needed: Kind) -> FieldKinds:
    return FieldKinds({**_ITEM, **needed}, allowed)


_A_TEXT: Final = _block({**_CACHE, "citations": (ListOf(dict), None)}, text=str)
_A_IMAGE: Final = _block(
    {**_CACHE, "transformations": (dict, None)},
    source=Tagged(
        "type",
        {
            "base64": _block({}, data=str, media_type=str),
            "url": _block({}, url=str),
            "file": _block({}, file_id=str),
        },
    ),
)
_A_DOCUMENT: Final = _block(
    {**_CACHE, "citations": (dict, None), "context": (str, None), "title": (str, None)},
    source=Tagged(
        "type",
        {
            "base64": _block({}, data=str, media_type=str),
            "text": _block({}, data=str, media_type=str),
            "content": _block(
                {}, content=(str, ListOf(Tagged("type", {"text": _A_TEXT, "image": _A_IMAGE})))
            ),
            "url": _block({}, url=str),
            "file": _block({}, file_id=str),
        },
    ),
)
_A_SEARCH: Final = _block(
    {**_CACHE, "citations": dict},
    source=str,
    title=str,
    content=ListOf(Tagged("type", {"text": _A_TEXT})),
)
_A_RESULTS: Final = {
    "text": _A_TEXT,
    "image": _A_IMAGE,
    "document": _A_DOCUMENT,
    "search_result": _A_SEARCH,
    "tool_reference": _block(tool_name=str),
    "browser_state": _block({**_CACHE, "state_changes": (list, None)}, tabs=list),
}
_A_ANSWER: Final = _block(_USED, tool_use_id=str, content=(dict, list))
_A_BLOCKS: Final = {
    "text": _A_TEXT,
    "image": _A_IMAGE,
    "document": _A_DOCUMENT,
    "search_result": _A_SEARCH,
    "thinking": _block({}, thinking=str, signature=str),
    "redacted_thinking": _block({}, data=str),
    "tool_use": _block(_USED, id=str, name=str, input=dict),
    "tool_result": _block(
        {
            **_USED,
            "content": (str, ListOf(Tagged("type", _A_RESULTS))),
            "is_error": bool,
        },
        tool_use_id=str,
    ),
    "server_tool_use": _block(_USED, id=str, name=str, input=dict),
    "mcp_tool_use": _block(_USED, id=str, name=str, input=dict, server_name=str),
    "mcp_tool_result": _block(
        {**_CACHE, "content": (str, list), "is_error": bool}, tool_use_id=str
    ),
    "web_search_tool_result": _A_ANSWER,
    "web_fetch_tool_result": _A_ANSWER,
    "code_execution_tool_result": _A_ANSWER,
    "bash_code_execution_tool_result": _A_ANSWER,
    "text_editor_code_execution_tool_result": _A_ANSWER,
    "tool_search_tool_result": _A_ANSWER,
    "container_upload": _block(file_id=str),
    "compaction": FieldKinds(_ITEM, is_open=True),
}
_A_TURN: Final = FieldKinds({"role": str, "content": (str, ListOf(Tagged("type", _A_BLOCKS)))})
_ANTHROPIC: Final = {
    "user": _A_TURN,
    "assistant": _A_TURN,
    "system": FieldKinds(
        {"role": str, "content": (str, ListOf(Tagged("type", {"text": _A_TEXT})))}
    ),
}


def _anthropic_faults(message: Message) -> Iterator[str]:
    yield from _role_faults(message, _ANTHROPIC)


# --- Gemini ---------------------------------------------------------------------------------------


def _either(fields: Mapping[str, Kind]) -> dict[str, Kind]:
    """Fields in both spellings: that of Python and that of the API."""
    camel = {re.sub("_(.)", lambda at: at[1].upper(), name): kind for name, kind in fields.items()}
    return {**fields, **camel}


def _optional(**fields: Kind) -> FieldKinds:
    """Fields of which none is needed; each may be null."""
    each = {
        name: (*kind, None) if type(kind) is tuple else (kind, None)
        for name, kind in fields.items()
    }
    return FieldKinds({}, _either(each))


_BYTES: Final = (str, bytes)
_PART: Final = _optional(
    text=str,
    thought=bool,
    thought_signature=_BYTES,
    inline_data=_optional(data=_BYTES, display_name=str, mime_type=str),
    file_data=_optional(file_uri=str, display_name=str, mime_type=str),
    function_call=_optional(id=str, name=str, args=dict, partial_args=list, will_continue=bool),
    function_response=_optional(
        id=str, name=str, response=dict, parts=ListOf(dict), scheduling=str, will_continue=bool
    ),
    executable_code=dict,
    code_execution_result=dict,
    tool_call=dict,
    tool_response=dict,
    video_metadata=dict,
    media_resolution=(dict, str),
    media_processing=(dict, str),
    speech_metadata=dict,
    audio_transcription=dict,
    part_metadata=dict,
)
_GEMINI_ROLES: Final = {"user": None, "model": None, "system": None, "function": None}
_CONTENT: Final = FieldKinds({"parts": ListOf(_PART)}, {"role": (str, None)})


def _gemini_faults(message: Message) -> Iterator[str]:
    role = message.get("role")
    if role is not None and (not isinstance(role, str) or role not in _GEMINI_ROLES):
        yield _unknown("role", role, _GEMINI_ROLES)
        return
    yield from _field_faults(message, _CONTENT, "")


# --- LangChain ------------------------------------------------------------------------------------

_L_CONTENT: Final = (str, ListOf((str, dict)))
_L_BESIDE: Final[dict[str, Kind]] = {
    "type": str, "name": (str, None), "id": (str, None), "additional_kwargs": dict,
    "response_metadata": dict,
}  # fmt: skip
_L_CALLS: Final[dict[str, Kind]] = {
    "tool_calls": ListOf(FieldKinds({"name": str, "args": dict, "id": (str, None)}, is_open=True)),
    "invalid_tool_calls": ListOf(dict),
    "usage_metadata": (dict, None),
}
_L_PLAIN: Final = FieldKinds({"content": _L_CONTENT}, _L_BESIDE, is_open=True)
_LANGCHAIN: Final = {
    "human": _L_PLAIN,
    "ai": FieldKinds({"content": _L_CONTENT}, {**_L_BESIDE, **_L_CALLS}, is_open=True),
    "system": _L_PLAIN,
    "tool": FieldKinds(
        {"content": _L_CONTENT, "tool_call_id": str},
        {**_L_BESIDE, "artifact": object, "status": str},
        is_open=True,
    ),
    "function": FieldKinds({"content": _L_CONTENT, "name": str}, _L_BESIDE, is_open=True),
    "chat": FieldKinds({"content": _L_CONTENT, "role": str}, _L_BESIDE, is_open=True),
}
_CHUNKS: Final = {
    f"{'AI' if kind == 'ai' else kind.capitalize()}MessageChunk": fields
    for kind, fields in _LANGCHAIN.items()
}
_L_TYPES: Final = {**_LANGCHAIN, **_CHUNKS}
_L_ROLE: Final = FieldKinds({"content": (*_L_CONTENT, None)}, {"role": str}, is_open=True)
_L_ROLES: Final = dict.fromkeys(
    ("human", "user", "ai", "assistant", "system", "developer", "function", "tool"), _L_ROLE
)  # fmt: skip


def _langchain_faults(message: Message) -> Iterator[str]:
    """Yield the faults of a message by type, nested or not, or with a role."""
    kind, prefix = message.get("type"), ""
    body: Any = message
    if kind == "constructor" and "lc" in message:
        path = message.get("id")
        kind = path[-1] if isinstance(path, list) and path else None
        named = re.fullmatch("(Human|AI|System|Tool|Function|Chat)Message(Chunk)?", str(kind))
        kind = named[1].lower() if named else kind
        body, prefix = message.get("kwargs"), "kwargs"
    elif isinstance(message.get("data"), Mapping):
        body, prefix = message["data"], "data"
    elif kind is None and "role" in message:
        yield from _role_faults(message, _L_ROLES)
        return
    fields = _L_TYPES.get(kind) if isinstance(kind, str) else None
    if fields is None:
        yield _unknown("type", kind, _LANGCHAIN)
    elif not isinstance(body, Mapping):
        yield f"{prefix}: expected an object, got {_shown(body)}"
    else:
        yield from _field_faults(body, fields, f"{prefix}." if prefix else "")


# --- Messages of a format -------------------------------------------------------------------------

_JUDGES: Final[dict[str, Callable[[Message], Iterator[str]]]] = {
    "chat": _chat_faults,
    "responses": _responses_faults,
    "anthropic": _anthropic_faults,
    "gemini": _gemini_faults,
    "langchain": _langchain_faults,
}


def form_faults(message: Message, wire: str) -> Iterator[str]:
    """Yield what is wrong with the form of a message: the path of the value, and the reason."""
    return _JUDGES[wire](message)


_SAID: Final = frozenset((
    "role", "type", "content", "parts", "tool_calls", "invalid_tool_calls", "function_call",
    "tool_call_id", "name", "data", "kwargs", "lc", "id", "call_id", "output", "arguments", "input",
))  # fmt: skip
"""Fields that say something to the model, or bind a result to its call."""


def unreadable_fault(message: Message, wire: str) -> str | None:
    """Say why an item that ``_fast.is_readable`` does not know is no message; None if it is one.

    An item of a type that nobody knows is one where the format may get new types.
    """
    # LangChain reads roles of other formats, and fills what they need with an empty text.
    by_role = "role" in message and "type" not in message and wire != "langchain"
    judges = [name for name in _JUDGES if not (by_role and name == "langchain")]
    if any(next(_JUDGES[name](message), None) is None for name in judges):
        return None  # an item that binds nothing, as a reference of Responses
    if "choices" in message and "role" not in message:
        return "it is a whole response: append its choices[0].message"
    kind, content = message.get("type"), message.get("content")
    is_new = isinstance(kind, str) and kind != "" and message.get("role") is None
    if wire == "responses" and is_new and isinstance(content, str | list | None):
        return None
    return next(form_faults(message, wire), "it is a message of no known format")


def fitted(message: Message, wire: str) -> Message | None:
    """Return a message without the fields beside its content that its format does not have.

    The message itself if there are none; None if more is wrong with its form.
    """
    odd = {fault.partition(":")[0] for fault in form_faults(message, wire)}
    if not odd:
        return message
    kept = _SAID - {"id"} if wire != "responses" else _SAID
    found = {
        name: value
        for name, value in message.items()
        if name not in odd or (value is not None and name in kept)
    }
    return None if any(form_faults(found, wire)) else found
