"""The parts of a message that may be edited: results, texts, arguments of calls, thinking.

Parts are found in all wire formats, LangChain's three spellings among them, and are named by their
path in the message. What a provider checks byte by byte or reads back by itself is no part: results
of its own tools, screenshots of a computer, actions of shell and patch calls, opaque items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from memcore._fast import classify
from memcore.formats.arguments import Arguments, arguments_of, call_names
from memcore.formats.binding import Entry, Key, bind
from memcore.formats.body import body_path, dicts_in, member_of, name_in
from memcore.formats.editing import REMOVED, Path, value_at
from memcore.model import ItemKind, Message

__all__ = [
    "Arguments",
    "Result",
    "Text",
    "arguments_of",
    "call_names",
    "results_of",
    "texts_of",
    "tool_names",
]

_TEXT_BLOCKS: Final = frozenset(("text", "input_text", "output_text"))
_RESPONSES_WHOLE: Final = frozenset(
    ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
)
_ANSWER_KEYS: Final = ("functionResponse", "function_response")


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a user or the model wrote."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """What answers one call."""

    path: Path
    """Of the whole content."""
    form: Literal["string", "blocks", "object", "streams"]
    """A string; a list of blocks; a JSON object (Gemini); stdout and stderr (shell)."""
    leaves: tuple[Text, ...]
    """The texts in it. Of an object without exactly one text: its JSON, under the object's path."""
    key: Key | None
    """Of the call that it answers; None if it names none."""
    name: str | None
    """Of the tool, if the result itself says so."""
    media: bool = False
    """Whether there is something beside the texts: images, files, references."""
    attached: Path | None = None
    """Where media of the result lie that are no part of its content (Gemini)."""

    @property
    def text(self) -> str:
        """All its texts as one."""
        return "\n".join(leaf.text for leaf in self.leaves)

    def with_text(self, text: str) -> dict[Path, Any]:
        """The edits that put ``text`` in place of all its texts; media stay."""
        first, *others = self.leaves
        if self.form == "object" and first.path == self.path:
            return {self.path: {"output": text}}
        edits: dict[Path, Any] = {first.path: text}
        for leaf in others:
            if self.form == "streams":
                edits[leaf.path] = ""
            else:
                is_block = isinstance(leaf.path[-1], str)
                edits[leaf.path[:-1] if is_block else leaf.path] = REMOVED
        return edits

    def cleared(self, text: str) -> dict[Path, Any]:
        """The edits that put ``text`` in place of everything, media as well."""
        if self.form == "streams":
            return self.with_text(text)
        edits: dict[Path, Any] = {self.path: {"output": text} if self.form == "object" else text}
        if self.attached is not None:
            edits[self.attached] = REMOVED
        return edits

    @property
    def size(self) -> int:
        """How many things there are to clear."""
        return len(self.leaves) + self.media


# --- results --------------------------------------------------------------------------------------


def results_of(message: Message) -> list[Result]:
    """The results in a message, in the order of the calls that ``classify`` says it answers."""
    kind, _, closes, _ = classify(message)
    if kind != ItemKind.RESULT:
        return []
    base = body_path(message)
    body = value_at(message, base)
    field = "parts" if isinstance(body.get("parts"), list) else "content"
    found: list[Result] = []
    for at, block in dicts_in(body.get(field)):
        is_answer = member_of(block, _ANSWER_KEYS) is not None
        if field == "parts" and is_answer:
            found.append(_gemini_result(block, (*base, field, at)))
        elif field == "content" and block.get("type") == "tool_result" and _is_turn(body):
            key = _key_of(field, block)
            found.append(_content_result(block, (*base, field, at, "content"), key, None))
    if found or _is_turn(body):
        return found
    key = closes[0] if closes else None
    if "output" in body and "content" not in body:
        return _responses_result(body, (*base, "output"), key)
    if "content" not in body:
        return []
    return [_content_result(body, (*base, "content"), key, name_in(body.get("name")))]


def _is_turn(body: dict[str, Any]) -> bool:
    """Whether the message may hold several results and texts beside them (Anthropic, Gemini)."""
    role = body.get("role")
    return role not in (None, "", "tool", "function") or isinstance(body.get("parts"), list)


def _key_of(field: str, block: dict[str, Any]) -> Key | None:
    closes = classify({"role": "user", field: [block]})[2]
    return closes[0] if closes else None


def _gemini_result(part: dict[str, Any], path: Path) -> Result:
    member = member_of(part, _ANSWER_KEYS) or ""
    answer = part[member]
    response = answer.get("response")
    own = (*path, member, "response")
    leaves: tuple[Text, ...] = ()
    if isinstance(response, dict) and response:
        only = next(iter(response)) if len(response) == 1 else None
        if only is not None and isinstance(response[only], str):
            leaves = (Text((*own, only), response[only]),)
        else:
            leaves = (Text(own, _json(response)),)
    attached = (*path, member, "parts") if answer.get("parts") else None
    name, key = name_in(answer.get("name")), _key_of("parts", part)
    return Result(own, "object", leaves, key, name, attached is not None, attached)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _content_result(body: dict[str, Any], path: Path, key: Key | None, name: str | None) -> Result:
    content = body.get(str(path[-1]))
    if isinstance(content, str):
        return Result(path, "string", (Text(path, content),) if content else (), key, name)
    leaves = tuple(_block_texts(content, path))
    others = len(content) - len(leaves) if isinstance(content, list) else 0
    return Result(path, "blocks", leaves, key, name, others > 0)


def _block_texts(content: Any, path: Path) -> Iterator[Text]:
    """The texts of a list of blocks (or strings)."""
    for at, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, str):
            yield Text((*path, at), block)
        elif _is_text(block):
            yield Text((*path, at, "text"), block["text"])


def _is_text(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") not in _TEXT_BLOCKS:
        return False
    return isinstance(block.get("text"), str)


def _responses_result(body: dict[str, Any], path: Path, key: Key | None) -> list[Result]:
    kind = body.get("type")
    if kind in _RESPONSES_WHOLE:
        return [_content_result(body, path, key, name_in(body.get("name")))]
    if kind == "shell_call_output":
        leaves = tuple(
            Text((*path, at, stream), block[stream])
            for at, block in dicts_in(body["output"])
            for stream in ("stdout", "stderr")
            if isinstance(block.get(stream), str) and block[stream]
        )
        return [Result(path, "streams", leaves, key, None)]
    if kind == "apply_patch_call_output" and isinstance(body["output"], str):
        return [_content_result(body, path, key, None)]
    return []  # a screenshot, a list of tools, an approval


# --- texts ----------------------------------------------------------------------------------------


def texts_of(message: Message) -> list[Text]:
    """What a user or the model says in a message, beside results, calls and thinking."""
    kind, _, _, _ = classify(message)
    if kind not in (ItemKind.USER, ItemKind.ASSISTANT, ItemKind.RESULT):
        return []
    base = body_path(message)
    body = value_at(message, base)
    if kind == ItemKind.RESULT and not _is_turn(body):
        return []
    if isinstance(body.get("parts"), list):
        return [
            Text((*base, "parts", at, "text"), part["text"])
            for at, part in dicts_in(body["parts"])
            if isinstance(part.get("text"), str) and part.get("thought") is not True
        ]
    content = body.get("content")
    if isinstance(content, str):
        return [Text((*base, "content"), content)] if content else []
    return list(_block_texts(content, (*base, "content")))


# --- names ----------------------------------------------------------------------------------------


def tool_names(entries: Iterable[Entry]) -> list[set[str]]:
    """The tools that each entry calls or answers; an entry without any has an empty set."""
    listed = list(entries)
    binding = bind(listed)
    names = [{} if entry.event else call_names(entry.message) for entry in listed]
    found = [set(calls.values()) for calls in names]
    for at, answers in enumerate(binding.answers):
        if answers:
            found[at] |= {result.name for result in results_of(listed[at].message) if result.name}
        for _, slot in answers:
            if slot is not None and slot.key in names[slot.at]:
                found[at].add(names[slot.at][slot.key])
    return found
