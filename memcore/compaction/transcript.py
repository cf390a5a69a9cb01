"""Items as a readable transcript within a budget: what a summarizer is given to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from memcore._fast import classify
from memcore.compaction.parts import Part, parts_of
from memcore.model import ItemKind, Message
from memcore.options import checked_int
from memcore.tokens import TokenCounter

__all__ = ["DEFAULT_CAPS", "Caps", "elided", "fitted", "transcribe"]

TEXT_CHARS_MAX: Final = 8_000
ARGUMENTS_CHARS_MAX: Final = 1_000
RESULT_CHARS_MAX: Final = 2_000
REASONING_CHARS_MAX: Final = 500
"""Characters: a judgement. MathModelAgent shows 500 of any message, LangChain's middleware all of
it and then the last 4,000 tokens of the whole."""
HEAD_SHARE: Final = 0.25
"""Of a transcript that is too long: what is kept of its start (the goals); the rest is its end."""
CUT_MARKER: Final = "[…]"


@dataclass(frozen=True, slots=True)
class Caps:
    """The most characters that a summarizer is shown of one text; the middle is left out.

    ``Caps(500, 500, 500, 0)`` is about what MathModelAgent shows. 0 hides the part.
    """

    text: int = TEXT_CHARS_MAX
    """Of what a user, the assistant or the system says."""
    arguments: int = ARGUMENTS_CHARS_MAX
    """Of one call."""
    result: int = RESULT_CHARS_MAX
    """Of one result."""
    reasoning: int = REASONING_CHARS_MAX
    """Of one piece of reasoning."""

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
    """The text within ``chars_max`` characters: its middle left out, and how much that was."""
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
    """One block of lines for each message, in order; empty where there is nothing to read.

    A result is labelled with the tool of the latest call with its id. Deterministic.
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
    # A text beside results in one message is the user's (Anthropic and Gemini).
    label = words.user if kind == ItemKind.RESULT else label
    text = elided(part.text, caps.text, language)
    return label + text if text else ""


def fitted(
    blocks: Sequence[str], budget_tokens: int, counter: TokenCounter, language: str = "en"
) -> str:
    """The blocks as one text of at most ``budget_tokens``: blocks in the middle are left out.

    A note says how many. Of a last block that does not fit alone, both ends are kept.
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
