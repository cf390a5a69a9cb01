"""What sort of thing an item is, and which tool it names, in the words of the SDK's analytics."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TOOL_CALLS", "item_type", "text_of", "tool_name"]

TOOL_CALLS: Final = frozenset(
    (
        "tool_call",
        "function_call",
        "computer_call",
        "file_search_call",
        "web_search_call",
        "code_interpreter_call",
        "tool_search_call",
        "custom_tool_call",
        "mcp_call",
        "mcp_approval_request",
        "shell_call",
        "apply_patch_call",
    )
)
"""The types that count as a use of a tool."""
_OF_A_SERVER: Final = ("mcp_call", "mcp_approval_request")
_NAMELESS: Final = (
    "computer_call",
    "file_search_call",
    "web_search_call",
    "code_interpreter_call",
    "shell_call",
    "apply_patch_call",
)
_SEARCH: Final = ("tool_search_call", "tool_search_output")


def item_type(item: Any) -> str:
    """``"user"``, ``"assistant"``, else the item's own type, else ``"other"``."""
    if not isinstance(item, dict):
        return "other"
    role = item.get("role")
    if isinstance(role, str) and role in ("user", "assistant"):
        return role
    return str(item["type"]) if item.get("type") else "other"


def tool_name(item: Any) -> str | None:
    """The tool that an item calls or answers, None if it names none."""
    if not isinstance(item, dict):
        return None
    kind, name = item.get("type"), item.get("name")
    if kind in _OF_A_SERVER and "server_label" in item:
        parts = [str(part) for part in (item["server_label"], name) if part]
        return ".".join(parts) or None
    if kind in _NAMELESS:
        return str(kind)
    if kind in _SEARCH:
        return "tool_search"
    if name is None:
        return None
    namespace = item.get("namespace")
    called, within = str(name), "" if namespace is None else str(namespace)
    return f"{within}.{called}" if called and within and within != called else called


def text_of(content: Any) -> list[str]:
    """The texts of a user message's content, which is text itself or a list of parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    texts = [part.get("text", "") for part in content if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]
