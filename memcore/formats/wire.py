"""Messages that memcore writes itself: synthetic results, summaries, the lead-in line.

All of them are fixed functions of their arguments, so that equal histories render to equal bytes.
"""

from __future__ import annotations

from typing import Any, Final

from memcore.formats.binding import BY_NAME, CLASS_MASK, CLASS_PROGRAM, CallSlot
from memcore.formats.policy import PairPolicy
from memcore.model import Message

__all__ = [
    "lead_in_message",
    "shape_of",
    "summary_message",
    "synthetic_results",
    "synthetic_samples",
    "user_message",
]

BLOCK_SHAPES: Final = ("anthropic", "gemini")
"""Wire formats in which one message answers all calls of the message before it."""
NO_RESULT: Final = "[no result: this tool call was not answered]"
LEAD_IN: Final = "[The earlier part of this conversation is not shown.]"
SUMMARY_PREFIX: Final = "[Summary of the earlier conversation]\n"
SEED_SUMMARY_PREFIX: Final = "[历史对话总结] "
_PIXEL: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB"
    "0C8AAAAASUVORK5CYII="
)
_RESPONSES_CLASSES: Final = {
    0: "function_call",
    1: "custom_tool_call",
    2: "local_shell_call",
    3: "shell_call",
    4: "apply_patch_call",
    5: "computer_call",
}
_WITH_CALLER: Final = (0, 3, 4)
"""Classes whose outputs say, as their calls do, which program called."""


def shape_of(message: Message) -> str:
    """The wire format of a message that makes calls or answers them."""
    if "role" not in message:
        if "lc" in message:
            return "constructor"
        if "data" in message:
            return "langchain_nested"
        return "langchain" if message.get("type") in ("ai", "AIMessageChunk") else "responses"
    if isinstance(message.get("parts"), list):
        return "gemini"
    return "anthropic" if _has_block(message, "tool_use") else "chat"


def _has_block(message: Message, kind: str) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == kind for block in content
    )


def synthetic_samples() -> list[Message]:
    """Synthetic results, one of which costs the most; ids have 64 characters, names 40.

    A longer function name may cost more, and the screenshot that answers a computer call.
    """
    text = "x" * 64
    answer = {"type": "tool_result", "tool_use_id": text, "content": NO_RESULT, "is_error": True}
    response = {"id": text, "name": "x" * 40, "response": {"error": NO_RESULT}}
    path = ["langchain", "schema", "messages", "ToolMessage"]
    body = {"type": "tool", "tool_call_id": text, "content": NO_RESULT}
    return [
        {"role": "user", "content": [answer]},
        {"role": "user", "parts": [{"functionResponse": response}]},
        {"role": "function", "name": text, "content": NO_RESULT},
        {"lc": 1, "type": "constructor", "id": path, "kwargs": body},
    ]


def user_message(policy: PairPolicy, text: str) -> Message:
    """A user line in the policy's format."""
    if policy.wire == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    if policy.wire == "langchain":
        return {"type": "human", "content": text}
    return {"role": "user", "content": text}


def lead_in_message(policy: PairPolicy) -> Message:
    """The fixed line that leads in a context which starts at no user item."""
    return user_message(policy, LEAD_IN)


def summary_message(policy: PairPolicy, summary: str) -> Message:
    """The summary as a message.

    It comes from the user, which every provider takes first; for ``seed`` from the assistant, as
    MathModelAgent places it.
    """
    if policy.name == "seed":
        return {"role": "assistant", "content": SEED_SUMMARY_PREFIX + summary}
    return user_message(policy, SUMMARY_PREFIX + summary)


def synthetic_results(message: Message, slots: list[CallSlot]) -> list[Message]:
    """Messages that answer ``slots``, the unanswered calls of ``message``, in its own format."""
    shape = shape_of(message)
    if shape in BLOCK_SHAPES:
        field = "content" if shape == "anthropic" else "parts"
        return [{"role": "user", field: [_block(shape, slot, message) for slot in slots]}]
    return [_synthetic(shape, slot, message) for slot in slots]


def _block(shape: str, slot: CallSlot, message: Message) -> dict[str, Any]:
    """A synthetic result as a block (Anthropic) or part (Gemini)."""
    cls, text = slot.key
    if shape == "anthropic":
        return {"type": "tool_result", "tool_use_id": text, "content": NO_RESULT, "is_error": True}
    response = {"error": NO_RESULT}
    if cls & BY_NAME:
        return {"functionResponse": {"name": text, "response": response}}
    name = _gemini_name(message, text)
    return {"functionResponse": {"id": text, "name": name, "response": response}}


def _gemini_name(message: Message, call_id: str) -> str:
    for part in message.get("parts", ()):
        call = part.get("functionCall", part.get("function_call")) if isinstance(part, dict) else 0
        if isinstance(call, dict) and call.get("id") == call_id:
            return str(call.get("name", ""))
    return ""


def _synthetic(shape: str, slot: CallSlot, message: Message) -> Message:
    cls, text = slot.key
    if shape == "responses":
        return _synthetic_output(cls & CLASS_MASK, text, message, named=bool(cls & BY_NAME))
    if cls & BY_NAME:
        if shape == "chat":
            return {"role": "function", "name": text, "content": NO_RESULT}
        body: Message = {"name": text, "content": NO_RESULT}
        kind, constructor = "function", "FunctionMessage"
    else:
        if shape == "chat":
            return {"role": "tool", "tool_call_id": text, "content": NO_RESULT}
        body = {"tool_call_id": text, "content": NO_RESULT, "status": "error"}
        kind, constructor = "tool", "ToolMessage"
    if shape == "langchain_nested":
        return {"type": kind, "data": {"type": kind, **body}}
    if shape == "constructor":
        path = ["langchain", "schema", "messages", constructor]
        return {"lc": 1, "type": "constructor", "id": path, "kwargs": {"type": kind, **body}}
    return {"type": kind, **body}


def _synthetic_output(cls: int, text: str, call: Message, *, named: bool) -> Message:
    """An output item of OpenAI Responses for each class of call."""
    if cls == CLASS_PROGRAM:
        ended = {"result": NO_RESULT, "status": "incomplete"}
        return {"type": "program_output", "id": text, "call_id": text, **ended}
    if cls == 8:  # noqa: PLR2004 - the class numbers of _fast.classify
        return {"type": "mcp_approval_response", "approval_request_id": text, "approve": False}
    if cls == 6:  # noqa: PLR2004
        answer: Message = {"type": "tool_search_output", "status": "completed", "tools": []}
        return answer if named else {**answer, "call_id": text}
    kind = _RESPONSES_CLASSES.get(cls, "function_call") + "_output"
    output: Any = NO_RESULT
    if cls == 3:  # noqa: PLR2004
        outcome = {"type": "exit", "exit_code": 1}
        output = [{"stdout": "", "stderr": NO_RESULT, "outcome": outcome}]
    elif cls == 5:  # noqa: PLR2004
        output = {"type": "computer_screenshot", "image_url": _PIXEL}
    message: Message = {"type": kind, "call_id": text, "output": output}
    if cls == 2:  # noqa: PLR2004
        message["id"] = call.get("id") or text
    elif cls == 4:  # noqa: PLR2004
        message["status"] = "failed"
    if cls in _WITH_CALLER and isinstance(call.get("caller"), dict):
        message["caller"] = call["caller"]
    return message
