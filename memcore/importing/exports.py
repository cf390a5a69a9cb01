"""Exports: conversations of ChatGPT, of ShareGPT's form, and plain JSON.

A file holds an array, or one value a line; it is read piece by piece, so its size does not matter.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from lzma import LZMAError
from pathlib import Path
from typing import Any, Final

from memcore.errors import InvalidItemError
from memcore.exchange.lines import Conversation
from memcore.importing.source import (
    ItemTree,
    Notes,
    Owner,
    Record,
    SourceBranch,
    SourceConversation,
    SourceFailure,
    SourceItem,
    branch_name,
    checked_message,
    micros_of,
    name_of_file,
    refuse_source,
)
from memcore.wire.convert import policy_of

__all__ = [
    "read_chatgpt",
    "read_json",
    "read_sharegpt",
]


# --- Values of a JSON file, one at a time ---------------------------------------------------------

_PIECE: Final = 1 << 16
_LINE_MAX: Final = 1 << 22
"""Longest first line that is told from an array."""
_VALUE_CHARS_MAX: Final = 512 * 1024**2
"""Longest value: a compressed file may hold any number of equal bytes."""
_UNPACKING: Final = (zipfile.BadZipFile, zlib.error, LZMAError)
_BLANK: Final = " \t\r\n"
_BLANKS: Final = re.compile(f"[{_BLANK}]+")
_DECODER: Final = json.JSONDecoder()


class _JsonValues:
    """Values of a text: the elements of its array, or those that follow each other."""

    def __init__(self, path: str, file: io.TextIOBase) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._at = 0
        self._done = 0
        """Characters before the text."""
        self._ended = False
        self.is_array = False

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield place and value.

        Raises:
            SourceError: it is no JSON, or ends early.
        """
        first = self._peek()
        self.is_array = first == "["
        if first == "[" and self._is_line_of_lists():
            self.is_array = False
        if self.is_array:
            self._at += 1
            if self._peek() == "]":
                return
        number = 0
        while self._peek():
            number += 1
            yield f"{self._path}: value {number}", self._value(number)
            if self.is_array and not self._follows():
                return

    def _is_line_of_lists(self) -> bool:
        """Return whether the file is a list of messages a line, and not one array."""
        while "\n" not in self._text[self._at :] and not self._ended:
            if len(self._text) > _LINE_MAX:
                return False
            self._fill()
        line = self._text[self._at :].split("\n", 1)
        if len(line) < 2 or not line[1].lstrip(_BLANK).startswith("["):  # noqa: PLR2004
            return False
        try:
            return isinstance(json.loads(line[0]), list)
        except (ValueError, RecursionError):
            return False

    def _follows(self) -> bool:
        """Return whether another element follows, behind a comma."""
        mark = self._peek()
        if mark not in (",", "]"):
            self._refuse("expected , or ] behind an element" if mark else "the array ends early")
        self._at += 1
        if mark == "]" and self._peek():
            self._refuse("expected the end behind the array")
        return mark == ","

    def _value(self, number: int) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as exc:
                refuse_source(f"{self._path}: value {number}", "is nested too deeply", exc)
            except ValueError as exc:
                if len(self._text) - self._at > _VALUE_CHARS_MAX:
                    self._refuse(f"a value is longer than {_VALUE_CHARS_MAX:,} characters")
                if self._ended or not isinstance(exc, json.JSONDecodeError):
                    self._refuse(f"no JSON, or cut off ({str(exc)[:60]})", exc)
            else:
                if end < len(self._text) or self._ended:  # a number may go on
                    self._at = end
                    return value
            self._fill()

    def _peek(self) -> str:
        """Return the next character that is not blank; empty at the end."""
        while True:
            blank = _BLANKS.match(self._text, self._at)
            self._at = self._at if blank is None else blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill()

    def _fill(self) -> None:
        """Read on: at least as much as is held, so that a long value is parsed a few times."""
        rest = self._text[self._at :]
        piece = self._file.read(max(_PIECE, len(rest)))
        self._ended = not piece
        self._done += self._at
        self._text, self._at = rest + piece, 0

    def _refuse(self, text: str, cause: BaseException | None = None) -> None:
        refuse_source(f"{self._path}: character {self._done + self._at:,}", text, cause)


@contextmanager
def _text(path: str, member: str | None = None) -> Iterator[_JsonValues]:
    """Open the values of a file, or of a file in a zip.

    Raises:
        SourceError: it cannot be read, is not UTF-8, or is damaged.
    """
    place = path if member is None else f"{path}: {member}"
    try:
        if member is None:
            with open(path, encoding="utf-8-sig") as file:
                yield _JsonValues(place, file)
            return
        with zipfile.ZipFile(path) as archive, archive.open(member) as raw:
            yield _JsonValues(place, io.TextIOWrapper(raw, encoding="utf-8-sig"))
    except UnicodeDecodeError as exc:
        refuse_source(place, f"is not UTF-8 at byte {exc.start}", exc)
    except (*_UNPACKING, EOFError, NotImplementedError, RuntimeError) as exc:
        if isinstance(exc, RecursionError):
            raise
        refuse_source(place, f"cannot be unpacked ({exc})", exc)
    except OSError as exc:
        refuse_source(place, exc.strerror or str(exc), exc)


# --- Plain JSON: messages in the format of a provider ---------------------------------------------


def read_json(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the conversations of an array or of lines; messages alone are one conversation."""
    del owner
    stem = name_of_file(path)
    with _text(path) as values:
        found = iter(values)
        first = next(found, None)
        if first is None:
            return
        rest = chain([first], found)
        if _is_message(first[1]):
            messages = [value for _, value in rest]
            yield _plain(path, messages, stem, notes)
            return
        for number, (place, value) in enumerate(rest, 1):
            yield _plain(place, value, f"{stem}-{number:06d}", notes)


def _is_message(found: Any) -> bool:
    if not isinstance(found, dict) or "messages" in found or "memcore" in found:
        return False
    return not found.keys().isdisjoint(("role", "type", "parts", "lc"))


def _plain(place: str, found: Any, name: str, notes: Notes) -> Record:
    try:
        said = Conversation.of(found)
    except InvalidItemError as error:
        return SourceFailure(place, str(error))
    owner = found.get("metadata") if isinstance(found, dict) else None
    has_owner = isinstance(owner, dict) and "memcore" in owner
    for ignored in said.ignored:
        if ignored not in _TIMES:
            notes.skip(f"field {ignored!r:.40} of conversations", place=place)
    items = [
        SourceItem(checked_message(message, notes), _time_of(message)) for message in said.messages
    ]
    return SourceConversation(
        place,
        said.name or name,
        said.policy or policy_of(said.messages, "openai_chat"),
        items,
        app=said.app if has_owner else None,
        user=said.user if has_owner else None,
        created_us=_time_of(found) if isinstance(found, dict) else None,
    )


def _time_of(found: dict[str, Any]) -> int | None:
    for name in _TIMES:
        time = micros_of(found.get(name))
        if time:
            return time
    return None


_TIMES: Final = ("created_at", "timestamp", "create_time", "created")


# --- ShareGPT -------------------------------------------------------------------------------------

_ROLES: Final = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "bot": "assistant",
    "bard": "assistant", "bing": "assistant", "model": "assistant", "claude": "assistant",
    "system": "system",
    "function_call": "call", "tool_call": "call",
    "observation": "tool", "tool": "tool", "function_response": "tool", "tool_response": "tool",
}  # fmt: skip
_TURNS: Final = ("conversations", "conversation", "messages", "items")


def read_sharegpt(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the rows of a data set."""
    del owner
    stem = name_of_file(path)
    with _text(path) as values:
        for number, (place, row) in enumerate(values, 1):
            key = next((key for key in _TURNS if isinstance(row, dict) and key in row), None)
            turns = row.get(key) if key is not None else row
            if not isinstance(turns, list):
                yield SourceFailure(place, "expected an object with a list of 'conversations'")
                continue
            said = row.get("id") if isinstance(row, dict) else None
            is_id = isinstance(said, str | int) and not isinstance(said, bool) and said != ""
            name = str(said) if is_id else f"{stem}-{number:06d}"
            yield _shared(place, name, row if isinstance(row, dict) else {}, turns, notes)


def _shared(
    place: str, name: str, row: dict[str, Any], turns: list[Any], notes: Notes
) -> SourceConversation:
    items: list[SourceItem] = []
    rest = {key: value for key, value in row.items() if key not in (*_TURNS, "id", "system")}
    if rest:
        items.append(SourceItem(checked_message(rest, notes), None, event="sharegpt.row"))
    if isinstance(row.get("system"), str) and row["system"]:
        items.append(SourceItem({"role": "system", "content": row["system"]}, None))
    waiting: list[str] = []
    for number, turn in enumerate(turns, 1):
        message = _turn(turn, number, waiting, notes)
        if message is None:
            notes.mend("turns of no known role, kept as events")
            payload = turn if isinstance(turn, dict) else {"turn": turn}
            items.append(SourceItem(checked_message(payload, notes), None, event="sharegpt.turn"))
        else:
            items.append(SourceItem(checked_message(message, notes), None, None))
    return SourceConversation(place, name, "openai_chat", items)


def _turn(turn: Any, number: int, waiting: list[str], notes: Notes) -> dict[str, Any] | None:
    """Return a turn as a message; calls get ids, and results those of the calls before them."""
    if not isinstance(turn, dict):
        return None
    role = _ROLES.get(str(turn.get("from", turn.get("role"))).lower())
    value = turn.get("value", turn.get("content"))
    if role is None or (value is None and "tool_calls" not in turn):
        return None
    if "role" in turn and "from" not in turn and role != "call":
        calls = turn.get("tool_calls")
        listed = calls if isinstance(calls, list) else []
        made = [call.get("id") for call in listed if isinstance(call, dict)]
        waiting += [call_id for call_id in made if isinstance(call_id, str)]
        return turn
    text = value if isinstance(value, str) else json.dumps(value)
    if role == "call":
        call_id = f"call-{number}"
        waiting.append(call_id)
        notes.mend("calls without an id, which got one by their order")
        call = {"id": call_id, "type": "function", "function": _function_of(text)}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if role == "tool":
        call_id = waiting.pop(0) if waiting else f"call-missing-{number}"
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {"role": role, "content": text}


def _function_of(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("name"), str):
        arguments = found.get("arguments", found.get("parameters", {}))
        told = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {"name": found["name"], "arguments": told}
    return {"name": "function", "arguments": json.dumps({"text": text})}


# --- ChatGPT --------------------------------------------------------------------------------------


def read_chatgpt(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the conversations of conversations.json, also in a zip or an unpacked directory."""
    del owner
    for file, member in _chatgpt_files(path):
        with _text(file, member) as values:
            for place, found in values:
                if not isinstance(found, dict) or not isinstance(found.get("mapping"), dict):
                    yield SourceFailure(place, "expected a conversation with a 'mapping'")
                    continue
                yield _Chat(place, found, notes).conversation()


def _chatgpt_files(path: str) -> list[tuple[str, str | None]]:
    if os.path.isdir(path):
        found = sorted(str(each) for each in Path(path).glob("conversations*.json"))
        if not found:
            refuse_source(path, "holds no conversations.json")
        return [(each, None) for each in found]
    try:
        if not zipfile.is_zipfile(path):
            return [(path, None)]
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if _is_conversations(name)]
    except (OSError, zipfile.BadZipFile, NotImplementedError) as exc:
        refuse_source(path, f"cannot be unpacked ({exc})", exc)
    if not names:
        refuse_source(path, "holds no conversations.json")
    return [(path, name) for name in sorted(names)]


def _is_conversations(name: str) -> bool:
    base = os.path.basename(name)
    return base.startswith("conversations") and base.endswith(".json")


class _Chat:
    """A conversation of an export: a tree of messages."""

    def __init__(self, place: str, body: dict[str, Any], notes: Notes) -> None:
        self._place = place
        self._body = body
        self._notes = notes
        self._nodes: dict[str, Any] = body["mapping"]
        self._tree = ItemTree(place)
        self._at: dict[str, int] = {}
        """Index of the last item at or above a node."""
        self._calls: dict[int, tuple[str, ...]] = {-1: ()}
        """Ids of the calls that wait for a result behind an item."""

    def conversation(self) -> SourceConversation:
        """Return it: the path to the current node is live, other leaves are branches."""
        body = self._body
        name = body.get("conversation_id") or body.get("id")
        if not isinstance(name, str) or not name:
            name = self._place
            self._notes.mend("conversations without an id, named after their place")
        self._plant()
        items = self._tree.items
        found = SourceConversation(
            self._place, name, "openai_chat", items,
            created_us=micros_of(body.get("create_time")),
            updated_us=micros_of(body.get("update_time")),
        )  # fmt: skip
        current = body.get("current_node")
        leaves = self._tree.leaves()
        known = self._at.get(current) if isinstance(current, str) else None
        found.leaf = known if known is not None else leaves[-1] if leaves else -1
        if items and known is None:
            self._notes.mend("conversations without a current node: their last one is taken")
        live = set(self._tree.path(found.leaf))
        names = {at: node for node, at in self._at.items()}
        for at in leaves:
            if at not in live:
                found.branches.append(SourceBranch(branch_name(names[at], at), at))
        title = body.get("title")
        if isinstance(title, str) and title:
            item = SourceItem({"title": title}, found.created_us, event="chatgpt.title")
            found.leaf = self._tree.add(item, found.leaf)
        return found

    def _plant(self) -> None:
        """Add the nodes, each behind its parent; what is in a circle begins anew."""
        nodes = self._nodes
        roots = [key for key, node in nodes.items() if self._parent(node) is None]
        children: dict[str | None, list[str]] = {}
        for key, node in nodes.items():
            children.setdefault(self._parent(node), []).append(key)
        for number, start in enumerate((*roots, *nodes)):
            waiting = [start]
            while waiting:
                key = waiting.pop()
                if key in self._at:
                    continue
                if number >= len(roots) and key == start:
                    self._notes.mend("messages whose parents form a circle")
                self._add(key)
                waiting += reversed(children.get(key, []))

    def _parent(self, node: Any) -> str | None:
        parent = node.get("parent") if isinstance(node, dict) else None
        return parent if isinstance(parent, str) and parent in self._nodes else None

    def _add(self, key: str) -> None:
        node = self._nodes[key]
        parent = self._parent(node)
        after = -1 if parent is None else self._at.get(parent, -1)
        message = node.get("message") if isinstance(node, dict) else None
        if not isinstance(message, dict):
            self._at[key] = after
            return
        calls = self._calls.get(after, ())
        made, left = self._message(key, message, calls)
        raw = {name: value for name, value in message.items() if value not in (None, {}, [])}
        item = SourceItem(
            checked_message(made, self._notes),
            micros_of(message.get("create_time")),
            {"chatgpt": checked_message(raw, Notes())},
        )
        at = self._at[key] = self._tree.add(item, after)
        self._calls[at] = left

    def _message(
        self, key: str, message: dict[str, Any], calls: tuple[str, ...]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return a node's message, and the calls that wait for a result behind it."""
        author = message.get("author")
        role = author.get("role") if isinstance(author, dict) else None
        text = _text_in(message.get("content"))
        recipient = message.get("recipient")
        if role == "assistant" and isinstance(recipient, str) and recipient not in ("all", ""):
            self._notes.mend("calls without an id, which got one by their order")
            call_id = f"call-{key}"
            function = {"name": recipient, "arguments": json.dumps({"input": text})}
            call = {"id": call_id, "type": "function", "function": function}
            left = (*calls[-_WAITING_MAX:], call_id)
            return {"role": "assistant", "content": None, "tool_calls": [call]}, left
        if role == "tool":
            if calls:
                return {"role": "tool", "tool_call_id": calls[0], "content": text}, calls[1:]
            # A tool may send several messages for one call: a context shows the first as its
            # result, and would leave out others.
            self._notes.mend("further results of a call, kept as the user's")
            return {"role": "user", "content": text}, calls
        if role not in ("user", "assistant", "system"):
            self._notes.mend("messages of no known role, kept as the user's")
            role = "user"
        return {"role": role, "content": text}, calls


_WAITING_MAX: Final = 64
"""Calls that may wait for a result behind each message; real chats answer at once."""
_TEXTS: Final = ("text", "result", "user_profile", "user_instructions", "content")


def _text_in(content: Any) -> str:
    """Return the text of a message; parts that are none are named."""
    if not isinstance(content, dict):
        return content if isinstance(content, str) else ""
    found: list[Any] = []
    parts = content.get("parts")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, dict):
            kind, asset = part.get("content_type"), part.get("asset_pointer")
            text = part.get("text")
            named = f"[{kind} {asset}]" if asset else f"[{kind}]"
            found.append(text if isinstance(text, str) else named)
    found += [content.get(name) for name in _TEXTS]
    thoughts = content.get("thoughts")
    listed = thoughts if isinstance(thoughts, list) else []
    found += [thought.get("content") for thought in listed if isinstance(thought, dict)]
    return "\n".join(text for text in found if isinstance(text, str) and text)
