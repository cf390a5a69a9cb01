"""Transcripts of items within a budget, the input of a summarizer; an extractive summarizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from memcore._fast import classify
from memcore.errors import InvalidItemError
from memcore.model import ItemKind, Message, SummaryRequest
from memcore.options import checked_int
from memcore.records import record
from memcore.tokens import TokenCounter, get_counter
from memcore.tokens.media import Media, from_data_url, read_media
from memcore.tokens.message import HIDDEN, json_text, without_base64
from memcore.wire import WireItem, bind
from memcore.wire.message import is_failure

__all__ = [
    "DEFAULT_CAPS",
    "Caps",
    "Extractive",
    "Part",
    "elided",
    "extractive",
    "fitted",
    "parts_of",
    "transcribe",
]


# --- Readable parts of an item: texts, calls, results and media, in any wire format ---------------

DEPTH_MAX: Final = 8
"""Nesting depth of blocks beyond which they are shown as JSON."""
OPAQUE_CHARS_MIN: Final = 256
"""Length from which a run of base64 characters counts as opaque to a reader."""

_OPAQUE: Final = re.compile(
    rf"(?<![\w+/=-])(?:data:[\w.+-]+/[\w.+-]+;base64,)?[A-Za-z0-9+/_=-]{{{OPAQUE_CHARS_MIN},}}+"
)
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/_=-]*+)")
_RESULT_ROLES: Final = ("tool", "function")
_PLAIN: Final = 2
_PLAIN_ROLES: Final = ("user", "assistant", "system", "developer")
"""Roles of messages that are plain if they have nothing but a role and a text."""
_CALL_BLOCKS: Final = ("tool_use", "server_tool_use", "mcp_tool_use", "program")
_ARGUMENTS: Final = ("arguments", "args", "input", "action", "operation", "code", "queries")
_ANSWERS: Final = ("output", "content", "outputs", "results", "response", "tools")
_THOUGHTS: Final = ("thinking", "reasoning", "summary", "content", "reasoning_content", "text")
_SILENT: Final = ("redacted_thinking", "input_json_delta", "item_reference")
"""Blocks without readable content."""
_WRAPPERS: Final = ("compaction", "message", "non_standard", "web_fetch_result")


class Part(NamedTuple):
    """One readable part of an item: a text, a call, a result, reasoning."""

    kind: str
    """``text``, ``call``, ``result`` or ``reasoning``."""
    text: str
    """A call's arguments are JSON unless they are text; media are shown as a placeholder."""
    name: str = ""
    """The tool of a call, or of a result that names it."""
    call_id: str = ""
    error: bool = False
    """True for a result if the tool failed."""


def parts_of(message: Message) -> list[Part]:
    """The readable parts of a message, in order; empty if there are none.

    Reads OpenAI Chat and Responses, Anthropic, Gemini, and LangChain's flat, nested and constructor
    forms. Unknown blocks are shown as JSON. Deterministic; never fails on a JSON object.
    """
    content = message.get("content")
    if len(message) == _PLAIN and isinstance(content, str) and message.get("role") in _PLAIN_ROLES:
        return [Part("text", readable(content))] if content else []  # as most messages are
    body = _body_of(message)
    label = _str(body, "type")
    if _is_result(message, body):
        answer = _answer(body, 0)
        return [Part("result", answer, _str(body, "name"), _call_id(body), is_failure(body))]
    if "role" not in body and (_is_call(label) or _is_answer(label) or label == "reasoning"):
        return list(_block(body, 0))
    found: list[Part] = []
    found += (part._replace(kind="reasoning") for part in _blocks(body.get("reasoning_content"), 0))
    for key in ("content", "parts", "refusal"):
        found += _blocks(body.get(key), 0)
    audio = body.get("audio")
    if isinstance(audio, dict) and _str(audio, "transcript"):
        found.append(Part("text", _str(audio, "transcript")))
    if not any(part.kind == "call" for part in found):  # LangChain writes calls twice
        found += _calls(body)
    return found


def _body_of(message: Message) -> Mapping[str, Any]:
    for key in ("data", "kwargs"):
        inner = message.get(key)
        if isinstance(inner, dict) and "role" not in message:
            return inner
    return message


def _str(value: Mapping[str, Any], *keys: str) -> str:
    return next((found for key in keys if isinstance(found := value.get(key), str)), "")


def _call_id(value: Mapping[str, Any]) -> str:
    return _str(value, "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "id")


def _is_call(label: str) -> bool:
    return label.endswith("_call") or label in _CALL_BLOCKS or label == "mcp_approval_request"


def _is_answer(label: str) -> bool:
    return label.endswith(("_output", "tool_result")) or label == "mcp_approval_response"


def _is_result(message: Message, body: Mapping[str, Any]) -> bool:
    """Return whether the message as a whole is the result of one call."""
    if isinstance(body.get("parts"), list):
        return False  # Gemini's results are parts
    path = message.get("id")
    if "lc" in message and isinstance(path, list) and path:
        return path[-1] in ("ToolMessage", "FunctionMessage")
    return (
        _str(body, "role") in _RESULT_ROLES
        or _str(body, "type") in _RESULT_ROLES
        or _str(message, "type") in _RESULT_ROLES
    )


# --- Calls ----------------------------------------------------------------------------------------


def _calls(body: Mapping[str, Any]) -> Iterator[Part]:
    """The calls that a message lists separately from its content."""
    extra = body.get("additional_kwargs")
    holders = [body, extra] if isinstance(extra, dict) else [body]
    for holder in holders:
        entries: list[Any] = []
        for key in ("tool_calls", "invalid_tool_calls"):
            value = holder.get(key)
            entries += value if isinstance(value, list) else ()
        entries.append(holder.get("function_call"))
        found = [_call(entry) for entry in entries if isinstance(entry, dict)]
        if found:
            yield from found
            return


def _call(value: Mapping[str, Any]) -> Part:
    inner = value
    for key in ("function", "custom"):
        nested = value.get(key)
        if isinstance(nested, dict):
            inner = nested
    name = _str(inner, "name") or _str(value, "type").removesuffix("_call")
    for key in _ARGUMENTS:
        if inner.get(key) is not None:
            return Part("call", _text(inner[key]), name, _call_id(value))
    return Part("call", "", name, _call_id(value))


def _answer(body: Mapping[str, Any], depth: int) -> str:
    """The readable text of a result."""
    found = [_said(body[key], depth) for key in _ANSWERS if body.get(key) is not None]
    if body.get("error"):
        found.append(_text(body["error"]))
    if isinstance(body.get("approve"), bool):
        found.append("approved" if body["approve"] else "not approved")
    return "\n".join(text for text in found if text)


def _said(value: Any, depth: int) -> str:
    if isinstance(value, list | str):
        return "\n".join(part.text for part in _blocks(value, depth + 1) if part.text)
    if not isinstance(value, dict):
        return _text(value)
    if "type" in value:
        return "\n".join(part.text for part in _block(value, depth + 1) if part.text)
    if len(value) == 1:
        return _text(next(iter(value.values())))
    return _text(value)


# --- Blocks ---------------------------------------------------------------------------------------


def _blocks(value: Any, depth: int) -> Iterator[Part]:
    if isinstance(value, str):
        if value:
            yield Part("text", readable(value))
    elif isinstance(value, dict):
        yield from _block(value, depth)
    elif isinstance(value, list):
        for block in value:
            yield from _blocks(block, depth)


def _block(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    label = _str(block, "type")
    if label in _SILENT:
        return
    if depth > DEPTH_MAX:
        yield Part("text", _text(block))
    elif label.endswith("thinking") or label.startswith("reasoning"):
        yield from _thought(block, depth)
    elif _is_call(label):
        yield _call(block)
        answer = "" if label in _CALL_BLOCKS else _answer(block, depth)
        if answer or _picture(block):
            yield Part("result", answer or "[image]", "", _call_id(block), is_failure(block))
    elif _is_answer(label):
        error = is_failure(block)
        yield Part("result", _answer(block, depth), _str(block, "name"), _call_id(block), error)
    elif not label and (parts := list(_gemini(block))):
        yield from parts
    else:
        yield from _plain(block, depth)


def _picture(block: Mapping[str, Any]) -> bool:
    return _str(block, "type") == "image_generation_call" and bool(block.get("result"))


def _thought(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    for key in _THOUGHTS:
        for part in _blocks(block.get(key), depth + 1):
            yield Part("reasoning", part.text)


def _gemini(part: Mapping[str, Any]) -> Iterator[Part]:
    """The parts in a Gemini call, result, or code run by the provider."""
    for key in ("functionCall", "function_call", "executableCode", "executable_code"):
        value = part.get(key)
        if isinstance(value, dict):
            found = _call(value)
            yield found if found.name else found._replace(name="code")
    for key in ("functionResponse", "function_response"):
        value = part.get(key)
        if isinstance(value, dict):
            response = value.get("response")
            failed = isinstance(response, dict) and bool(response.get("error"))
            yield Part("result", _said(response, 0), _str(value, "name"), _call_id(value), failed)
    for key in ("codeExecutionResult", "code_execution_result"):
        value = part.get(key)
        if isinstance(value, dict):
            failed = _str(value, "outcome") not in ("", "OUTCOME_OK")
            yield Part("result", _answer(value, 0), "code", "", failed)


def _plain(block: Mapping[str, Any], depth: int) -> Iterator[Part]:
    """The parts in a text, an image, a document, or an unknown block."""
    media = read_media(block)
    if media is not None:
        if media[0] is not None:
            name = _str(block, "title", "filename", "file_name", "name")
            yield Part("text", placeholder(media[0], name))
        else:
            yield from _blocks(media[1][1:], depth + 1)
        return
    text = _str(block, "text", "refusal")
    if text:
        yield Part("reasoning" if block.get("thought") is True else "text", readable(text))
    elif _str(block, "type") in _WRAPPERS:
        yield from _blocks(block.get("content", block.get("value")), depth + 1)
    elif "text" not in block:
        yield Part("text", _text(block))


def placeholder(media: Media, name: str = "") -> str:
    """The text shown for an image, a recording or a document: ``[image image/png 640x480]``."""
    words = [media.kind, name, media.mime]
    if media.width is not None:
        words.append(f"{media.width}x{media.height}")
    elif media.seconds is not None:
        words.append(f"{media.seconds:.0f} s")
    elif media.size_bytes is not None:
        words.append(f"{media.size_bytes} bytes")
    return f"[{' '.join(word for word in words if word)}]"


# --- Texts ----------------------------------------------------------------------------------------


def readable(text: str) -> str:
    """The text with placeholders in place of data URLs and long opaque runs."""
    if "base64," in text:
        text = _DATA_URL.sub(lambda found: placeholder(from_data_url(found[1], found[2])), text)
        text = without_base64(text, [])  # the rarer forms
    if len(text) < OPAQUE_CHARS_MIN:
        return text
    return _OPAQUE.sub(lambda found: f"[{len(found[0])} opaque characters]", text)


def _text(value: Any) -> str:
    """A JSON value as readable text, without the hidden members of an object (signatures)."""
    if isinstance(value, str):
        return readable(value)
    if value is None:
        return ""
    if isinstance(value, dict):
        value = {key: entry for key, entry in value.items() if key not in HIDDEN}
    try:
        return readable(json_text(value))
    except InvalidItemError:
        return "[nested too deeply to be shown]"


# --- Items as a readable transcript within a budget: the input of a summarizer --------------------

TEXT_CHARS_MAX: Final = 8_000
ARGUMENTS_CHARS_MAX: Final = 1_000
RESULT_CHARS_MAX: Final = 2_000
REASONING_CHARS_MAX: Final = 500
"""Character limits; a judgement. MathModelAgent shows 500 characters of any message; LangChain's
middleware shows all of it, and then the last 4,000 tokens of the whole."""
HEAD_SHARE: Final = 0.25
"""Share of the budget for the start (the goals) of an overlong transcript; its end gets the
rest."""
CUT_MARKER: Final = "[…]"


@record(frozen=True, slots=True)
class Caps:
    """Maximum characters of one text shown to a summarizer; the middle of a longer one is left out.

    ``Caps(500, 500, 500, 0)`` approximates MathModelAgent. 0 hides the part.
    """

    text: int = TEXT_CHARS_MAX
    """Limit per text by the user, the assistant or the system."""
    arguments: int = ARGUMENTS_CHARS_MAX
    """Limit per call."""
    result: int = RESULT_CHARS_MAX
    """Limit per result."""
    reasoning: int = REASONING_CHARS_MAX
    """Limit per piece of reasoning."""

    def __post_init__(self) -> None:
        for field in fields(self):
            checked_int(f"Caps: {field.name}", getattr(self, field.name))


DEFAULT_CAPS: Final = Caps()


class _Words:
    """The labels of one language."""

    def __init__(self, *words: str) -> None:
        self.system, self.user, self.assistant = words[:3]
        self.calls, self.result, self.error, self.thinks = words[3:7]
        self.chars, self.items = words[7:]


_WORDS: Final[Mapping[str, _Words]] = {
    "en": _Words(
        "system: ", "user: ", "assistant: ",
        "assistant calls {}: ", "result of {}: ", "error of {}: ", "assistant thinks: ",
        "[… {} characters left out …]", "[… {} messages left out …]",
    ),
    "zh": _Words(
        "系统：", "用户：", "助手：", "助手调用 {}：", "{} 的结果：", "{} 的错误：", "助手思考：",
        "[…… 省略 {} 个字符 ……]", "[…… 省略 {} 条消息 ……]",
    ),
}  # fmt: skip


def elided(text: str, chars_max: int, language: str = "en") -> str:
    """The text cut to ``chars_max`` characters, with a marker stating how many were removed."""
    if len(text) <= chars_max:
        return text
    marker = _WORDS[language].chars
    kept = max(0, chars_max - len(marker.format(len(text))))
    if not kept:
        return text[:chars_max]
    head = kept - kept // 2
    return text[:head] + marker.format(len(text) - kept) + text[len(text) - kept // 2 :]


def transcribe(
    messages: Sequence[Message], *, caps: Caps = DEFAULT_CAPS, language: str = "en"
) -> list[str]:
    """One block of lines per message, in order; empty if the message has no readable content.

    A result is labeled with the tool of the latest call with its id. Deterministic.
    """
    names: dict[str, str] = {}
    blocks = []
    for message in messages:
        kind = classify(message)[0]
        lines = []
        for part in parts_of(message):
            if part.kind == "call" and part.call_id:
                names[part.call_id] = part.name
            line = _line(part, kind, names, caps, language)
            if line:
                lines.append(line)
        blocks.append("\n".join(lines))
    return blocks


def _line(part: Part, kind: int, names: Mapping[str, str], caps: Caps, language: str) -> str:
    words = _WORDS[language]
    if part.kind == "call":
        text = elided(part.text, caps.arguments, language)
        return words.calls.format(part.name or "?") + text
    if part.kind == "result":
        label = words.error if part.error else words.result
        name = part.name or names.get(part.call_id) or "?"
        return label.format(name) + elided(part.text, caps.result, language)
    if part.kind == "reasoning":
        text = elided(part.text, caps.reasoning, language)
        return words.thinks + text if text else ""
    label = {ItemKind.SYSTEM: words.system, ItemKind.USER: words.user}.get(
        ItemKind(kind), words.assistant
    )
    # Text in the same message as results is the user's (Anthropic and Gemini).
    label = words.user if kind == ItemKind.RESULT else label
    text = elided(part.text, caps.text, language)
    return label + text if text else ""


def fitted(
    blocks: Sequence[str], budget_tokens: int, counter: TokenCounter, language: str = "en"
) -> str:
    """Join the blocks into one text of at most ``budget_tokens``, leaving out blocks in the middle.

    A note gives their number. A last block that does not fit by itself is cut in its middle.
    """
    shown = [block for block in blocks if block]
    counts = [tokens + 1 for tokens in counter.count_many(shown)]
    text = "\n".join(shown)
    if sum(counts) <= budget_tokens or counter.count(text) <= budget_tokens:
        return text
    words = _WORDS[language]
    room = budget_tokens - counter.count(words.items.format(len(shown))) - 2
    head = used = 0
    while used + counts[head] <= room * HEAD_SHARE:
        used += counts[head]
        head += 1
    tail = len(shown)
    while tail > head + 1 and used + counts[tail - 1] <= room:
        tail -= 1
        used += counts[tail]
    last = shown[tail:]
    if not last and room - used > 0:
        tail -= 1
        marker = CUT_MARKER if counter.count(CUT_MARKER) <= room - used else None
        last = [counter.truncate(shown[tail], room - used, keep="middle", marker=marker).text]
    note = [words.items.format(tail - head)] if tail > head else []
    text = "\n".join((*shown[:head], *note, *last))
    return counter.truncate(text, budget_tokens, keep="tail").text


# --- A summary without a model: the user's requests, the tools that ran, the outcome --------------

LINE_CHARS_MAX: Final = 160
LINES_MAX: Final = 40
COUNTER: Final = "o200k_base"
NOTHING: Final = "(nothing of note)"
_LABELS: Final = {
    ItemKind.SYSTEM: "instruction",
    ItemKind.USER: "user",
    ItemKind.ASSISTANT: "assistant",
    ItemKind.RESULT: "result",
}


@record(frozen=True, slots=True)
class Extractive:
    """One line for each message and its tool calls, after those of the previous summary.

    A summarizer without a model: deterministic, incremental (folding in two steps gives the same
    result as folding in one), and it never fails on JSON items. The newest of equal lines is kept,
    and the newest lines overall.
    """

    lines_max: int = LINES_MAX
    line_chars_max: int = LINE_CHARS_MAX
    """Maximum characters of a line of text; a longer one loses its end."""

    def __post_init__(self) -> None:
        checked_int("lines_max", self.lines_max, least=1)
        checked_int("line_chars_max", self.line_chars_max, least=1)

    def __call__(self, request: SummaryRequest, /) -> str:
        """The lines, oldest first, within ``request.max_tokens`` by o200k_base, if given."""
        lines = (request.previous_summary or "").splitlines()
        binding = bind(WireItem(at, message) for at, message in enumerate(request.messages))
        for at, message in enumerate(request.messages):
            if request.level:
                lines += "\n".join(part.text for part in parts_of(message)).splitlines()
            else:
                lines += self._lines(message, binding.kinds[at])
        newest = dict.fromkeys(line for line in reversed(lines) if line and line != NOTHING)
        kept = list(newest)[: self.lines_max][::-1]
        if request.max_tokens is not None and kept:
            kept = _within(kept, request.max_tokens)
        return "\n".join(kept) or NOTHING

    def _lines(self, message: Message, kind: int) -> list[str]:
        parts = parts_of(message)
        said = self._line(parts, "result" if kind == ItemKind.RESULT else "text")
        label = _LABELS.get(ItemKind(kind))
        lines = [f"{label}: {said}"] if said and label is not None else []
        names = [part.name for part in parts if part.kind == "call" and part.name]
        if names:
            lines.append(f"tools called: {', '.join(names)}")
        return lines

    def _line(self, parts: list[Part], kind: str) -> str:
        chosen = [part for part in parts if part.kind in ("text", kind)]
        text = " ".join(" ".join(part.text for part in chosen).split())
        if len(text) > self.line_chars_max:
            text = text[: self.line_chars_max - 1] + "…"
        return text


extractive: Final = Extractive()
"""``Extractive`` with its defaults: the newest 40 lines of up to 160 characters."""


def _within(lines: list[str], max_tokens: int) -> list[str]:
    """The newest lines that fit together; if not even one fits, the start of the newest."""
    counter = get_counter(COUNTER)
    while len(lines) > 1 and counter.count("\n".join(lines)) > max_tokens:
        lines = lines[1:]
    return [counter.truncate(lines[0], max_tokens).text] if len(lines) == 1 else lines
