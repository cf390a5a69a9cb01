"""Trust in a statement: who made it, what a text may hold, and which parts of it were pasted. Pure.

Wording proves nothing: a plain lie told by a tool looks like a fact. So trust follows from the
source of a statement, and nothing here tries to recognise an attack by its phrases.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from memcore.codec.values import check_json
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.model import Item, ItemKind, Message
from memcore.wire.message import body_path, value_at

__all__ = [
    "ACTIVE_BY",
    "BY",
    "KINDS",
    "NAME_CHARS_MAX",
    "STATUSES",
    "TEXT_BYTES_MAX",
    "UNSOURCED_BY",
    "by_of_item",
    "checked_attributes",
    "checked_contents",
    "checked_labels",
    "checked_name",
    "checked_text",
    "is_pasted",
    "is_weaker",
    "normalised",
    "own_texts",
    "own_words",
    "shown_name",
    "signs",
    "split_pasted",
    "visible_text",
    "weakest",
]


KINDS: Final = ("fact", "preference", "event", "procedure", "note")
STATUSES: Final = ("active", "quarantined", "superseded", "archived", "forgotten")
BY: Final = ("operator", "user", "confirmed", "assistant", "agent", "tool", "import")
"""Origins of a statement, the most trusted first."""
ACTIVE_BY: Final = frozenset(("operator", "user", "confirmed"))
"""Trust that makes a statement active at once; any other waits in quarantine."""
UNSOURCED_BY: Final = frozenset(("operator", "import"))
"""Trust that a caller may state without citing items."""

_BY_KIND: Final = {
    ItemKind.USER: "user",
    ItemKind.ASSISTANT: "assistant",
    ItemKind.CALL: "assistant",
    ItemKind.REASONING: "assistant",
    ItemKind.RESULT: "tool",
    ItemKind.EVENT: "agent",
}
"""Trust in an item by its kind. System prompts and opaque items count as ``import``: a prompt is
the program's text, not something that was learned."""


def by_of_item(item: Item) -> str:
    """Return the trust in an item by its kind; what another agent says in the user's role is its.

    Nobody is named as the author of what the user wrote, or ``user`` is.
    """
    by = _BY_KIND.get(item.kind, "import")
    is_agents = item.envelope is not None and item.envelope.by not in (None, "user")
    return "agent" if by == "user" and is_agents else by


def is_weaker(by: str, than: str) -> bool:
    """Return True if one trust is lower than another."""
    return BY.index(by) > BY.index(than)


def weakest(found: Iterable[str]) -> str:
    """Return the lowest of several trusts."""
    return max(found, key=BY.index)


# --- Texts as they are compared -------------------------------------------------------------------

_WORD: Final = re.compile(r"\w+")
_ENDS: Final = " .!?\u3002"  # full width signs become these by NFKC


def normalised(text: str) -> str:
    """Return a text as it is compared: NFKC, case folded, single spaces, no final full stop."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(_ENDS)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(unicodedata.normalize("NFKC", text).casefold())) | signs(text)


def signs(text: str) -> set[str]:
    """Return the characters of a text that are no letters, digits, marks, spaces or punctuation.

    Symbols can be read as well: squared letters spell words, a thumb says no.
    """
    plain = set(unicodedata.normalize("NFKC", text))
    return {char for char in plain if unicodedata.category(char) in _SIGNS}


_SIGNS: Final = frozenset(("Sm", "Sc", "Sk", "So", "Nl", "No", "Co", "Cn", "Cs"))
"""Categories of Unicode whose characters are compared one by one."""


# --- What a user wrote, and pasted parts of it ----------------------------------------------------

_PLAIN_TYPES: Final = ("text", "input_text", "output_text")
_PLAIN_KEYS: Final = frozenset(
    (
        "type", "text", "id", "annotations", "citations", "cache_control", "thought",
        "thoughtSignature", "thought_signature",
    )
)  # fmt: skip
_CACHE_MARK: Final = {"cachePoint"}


def own_texts(message: Message) -> tuple[list[str], bool]:
    """Return the blocks of plain text of a user's item, and True if it holds more than these.

    Only plain text is what the user wrote: documents, results of tools that a provider ran, and
    files came from elsewhere. So does what is not known here.
    """
    body = value_at(message, body_path(message))
    content = body.get("parts") or body.get("content")
    if isinstance(content, str):
        return [content], False
    if not isinstance(content, list):
        return [], True
    found: list[str] = []
    blocks = [block for block in content if not _is_cache_mark(block)]
    for block in blocks:
        if isinstance(block, str):
            found.append(block)
        elif _is_plain(block):
            found.append(block["text"])
    return found, len(found) < len(blocks)


def _is_cache_mark(block: Any) -> bool:
    """Return True for a block by which Bedrock marks the end of what is cached."""
    return isinstance(block, dict) and block.keys() == _CACHE_MARK


def _is_plain(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and isinstance(block.get("text"), str)
        and block.get("type", "text") in _PLAIN_TYPES
        and block.get("thought") is not True
        and block.keys() <= _PLAIN_KEYS
    )


_QUOTE_WORDS: Final = 5
"""Least words of a quotation that counts as pasted: shorter ones are names and terms."""
_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})")
_BLOCK: Final = '"""'
_CLOSING: Final = {
    "\u201c": "\u201d", "\u201e": "\u201c\u201d", "\u201d": "\u201d", "\u00ab": "\u00bb",
    "\u00bb": "\u00ab", "\u300c": "\u300d", "\u300e": "\u300f",
}  # fmt: skip
"""Quotation marks that open, with those that close them."""
_LONE: Final = "\u201d\u00bb"
"""Marks that are no quotation if nothing closes them: inches, and arrows of a menu."""
_OPENING: Final = re.compile("[" + "".join(_CLOSING) + "]")
_CLOSE: Final = {marks: re.compile(f"[{marks}]") for marks in _CLOSING.values()}
_QUOTING: Final = re.compile('[`~>"' + "".join(_CLOSING) + "]")
"""Characters without which nothing is pasted."""


def is_pasted(statement: str, texts: Iterable[str], *, foreign: bool = False) -> bool:
    """Return True if a statement rests on pasted parts of a user's texts.

    Pasted are fenced blocks, lines that begin with ``>``, and quotations of five words or more. In
    doubt more is: a fence or a quotation that nothing closes reaches to the end, and straight
    quotes that do not pair reach from the first to the last. A statement rests on pasted parts if
    one of its words occurs there and nowhere in the user's own words. Takes linear time.

    Args:
        statement: the statement.
        texts: what the user wrote, as blocks of plain text.
        foreign: True if the user's items hold more than that, such as documents. The statement is
            the user's only if all of its words are.
    """
    own, pasted = split_pasted(texts)
    if not (pasted or foreign):
        return False
    words, of_user = _words(statement), _words(own)
    return bool(words - of_user if foreign else words & (_words(pasted) - of_user))


def own_words(texts: Iterable[str]) -> str:
    """Return a user's texts without their pasted parts. Takes linear time."""
    return split_pasted(texts)[0]


def split_pasted(texts: Iterable[str]) -> tuple[str, str]:
    """Return the user's own words in texts that a user wrote, and the pasted parts."""
    own: list[str] = []
    pasted: list[str] = []
    for text in texts:
        if _QUOTING.search(text) is None:  # the common case
            own.append("\n".join(text.splitlines()))
            continue
        rest = _without_blocks(_without_lines(text, pasted), pasted)
        own.append(_without_straight(_without_quotations(rest, pasted), pasted))
    return "\n".join(own), "\n".join(pasted)


def _without_lines(text: str, pasted: list[str]) -> str:
    """Move fenced blocks and quoted lines to ``pasted``; return the rest.

    A fence ends as CommonMark says: at a line of nothing but at least as many of its characters.
    """
    own: list[str] = []
    fence = ""
    for line in text.splitlines():
        bare = line.strip()
        if fence:
            pasted.append(line)
            if len(bare) >= len(fence) and not bare.strip(fence[0]):
                fence = ""
        elif (opens := _FENCE.match(line)) is not None:
            fence = opens[1]
            pasted.append(line)
        else:
            (pasted if bare.startswith(">") else own).append(line)
    return "\n".join(own)


def _without_blocks(text: str, pasted: list[str]) -> str:
    """Move what stands between triple quotes to ``pasted``; return the rest."""
    parts = text.split(_BLOCK)
    pasted += parts[1::2]
    return " ".join(parts[::2])


def _without_quotations(text: str, pasted: list[str]) -> str:
    """Move long quotations in typographic marks to ``pasted``; return the rest."""
    own: list[str] = []
    at, unclosed = 0, set[str]()
    while (opens := _OPENING.search(text, at)) is not None:
        own.append(text[at : opens.start()])
        marks = _CLOSING[opens[0]]
        closes = None if marks in unclosed else _CLOSE[marks].search(text, opens.end())
        if closes is None and opens[0] in _LONE:
            unclosed.add(marks)
            at = opens.end()
            continue
        at = len(text) if closes is None else closes.end()
        quoted = text[opens.end() : at]
        is_long = closes is None or _counts(quoted) >= _QUOTE_WORDS
        (pasted if is_long else own).append(quoted)
    own.append(text[at:])
    return " ".join(own)


def _without_straight(text: str, pasted: list[str]) -> str:
    """Move long quotations in straight quotes to ``pasted``; return the rest.

    The same character opens, closes, and stands for inches. If the quotes do not pair by their
    neighbours, or a long quotation stands among several, nobody can tell the quoted parts from
    those between them: then all from the first to the last quote is pasted.
    """
    parts = text.split('"')
    if len(parts) < 3:  # noqa: PLR2004 - no two quotes
        return text
    quoted = parts[1::2]
    within = " ".join(parts[1:-1])
    is_sure = len(parts) % 2 == 1 and all(map(_is_quotation, parts[::2], quoted, parts[2::2]))
    is_long = max(map(_counts, quoted)) >= _QUOTE_WORDS
    if _counts(within) < _QUOTE_WORDS or (is_sure and not is_long):
        return text
    pasted.append(within)
    return f"{parts[0]} {parts[-1]}"


def _is_quotation(before: str, quoted: str, after: str) -> bool:
    """Return True if the quotes around a text open and close by their neighbours."""
    opens = not before[-1:].isalnum() and quoted[:1].strip() != ""
    closes = quoted[-1:].strip() != "" and not quoted[-1:].isdigit() and not after[:1].isalnum()
    return opens and closes


def _counts(text: str) -> int:
    """Return the number of words in a text."""
    return sum(1 for _ in _WORD.finditer(text))


# --- What a text may hold -------------------------------------------------------------------------

TEXT_BYTES_MAX: Final = 16 * 1024
"""Largest text of a memory in UTF-8: it is a statement, not a document."""
ATTRIBUTES_BYTES_MAX: Final = 16 * 1024
ATTRIBUTES_DEPTH_MAX: Final = 100
"""Deepest nesting of attributes: whatever reads them descends on the caller's stack."""
NAME_CHARS_MAX: Final = 256
LABELS_MAX: Final = 32
_UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and line feed
    "\u00ad\u034f\u061c\u17b4\u17b5\u180b-\u180f"
    "\u115f\u1160\u2800\u3164\uffa0"  # letters and patterns without ink
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"  # zero width, bidi
    "\ufe00-\ufe0d"  # variation selectors
    "\ud800-\udfff"  # not characters
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # formats of shorthand and music
    "\U000e0000-\U000e0fff"  # tags, and variation selectors that no font uses
)
_HIDDEN: Final = re.compile(
    f"[{_UNSEEN}]|"
    "(?<![^\x00-\x7f])[\ufe0e\ufe0f](?!\u20e3)|[\u200c\u200d\ufe0e\ufe0f][\ufe0e\ufe0f]|"
    "(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])|[\u200c\u200d]{2}"
)
"""Characters that nobody sees. Joiners are allowed between letters that are not ASCII, where Indic
and Arabic scripts and emoji need them, and one selector of the form of a sign behind the sign."""
_SUSPECT: Final = re.compile(f"[{_UNSEEN}\u200c\u200d\ufe0e\ufe0f]")
"""Characters that are hidden, or are so beside others: one class is searched much faster."""
_CARRIAGE: Final = re.compile("\r\n?")


def _need_visible(name: str, text: str) -> None:
    if _SUSPECT.search(text) is None:
        return
    found = _HIDDEN.search(text)
    if found is not None:
        msg = (
            f"{name}: holds the hidden character U+{ord(found[0][0]):04X} at {found.start()}; "
            "what nobody sees is not remembered"
        )
        raise InvalidItemError(msg)


def checked_text(text: object) -> str:
    """Return the text of a memory, checked, with line feeds as line ends.

    Raises:
        InvalidItemError: it is no text, is empty or too large, or holds hidden characters.
    """
    if not isinstance(text, str):
        msg = f"text: expected a str, got {type(text).__name__}"
        raise InvalidItemError(msg)
    if len(text) > TEXT_BYTES_MAX or len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        msg = (
            f"text: {len(text.encode('utf-8', 'replace')):,} bytes, at most {TEXT_BYTES_MAX:,}; "
            "remember a statement, and store the document as a blob"
        )
        raise InvalidItemError(msg)
    told = _CARRIAGE.sub("\n", text) if "\r" in text else text
    _need_visible("text", told)
    if not normalised(told):
        msg = f"text: {'has no word' if told.strip() else 'is empty'}"
        raise InvalidItemError(msg)
    return told


def checked_contents(text: str) -> str:
    """Return the text of a file, checked: it may be empty, and its line ends stay.

    Raises:
        InvalidItemError: it is too large, or holds hidden characters.
    """
    if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        msg = f"the file would have more than {TEXT_BYTES_MAX} bytes; split it into several"
        raise InvalidItemError(msg)
    _need_visible("file", _CARRIAGE.sub("\n", text))
    return text


def checked_name(name: str, value: object) -> str:
    """Return a short text, such as a subject or a slot, checked.

    Raises:
        InvalidOptionError: it is not a str of 1 to 256 characters.
        InvalidItemError: it holds hidden characters.
    """
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX or not value.strip():
        got = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        msg = f"{name}: expected a str of 1 to {NAME_CHARS_MAX} characters, got {got}"
        raise InvalidOptionError(msg)
    _need_visible(name, value)
    return value


def shown_name(name: str) -> str:
    """Return a name that was found in a log as it may be shown: short, without hidden characters.

    What is hidden becomes U+FFFD.
    """
    return _HIDDEN.sub("\ufffd", name[:NAME_CHARS_MAX])


def visible_text(text: str) -> str:
    """Return a text as it may be shown to a model: U+FFFD in place of what nobody sees."""
    if _SUSPECT.search(text) is None:
        return text
    return _HIDDEN.sub("\ufffd", _CARRIAGE.sub("\n", text))


def checked_labels(labels: object) -> dict[str, str]:
    """Return labels, checked.

    Raises:
        InvalidOptionError: they are not a mapping of up to 32 short texts to short texts.
        InvalidItemError: one holds hidden characters.
    """
    if not isinstance(labels, Mapping) or len(labels) > LABELS_MAX:
        msg = f"labels: expected a mapping of at most {LABELS_MAX} texts, got {labels!r:.80}"
        raise InvalidOptionError(msg)
    return {
        checked_name("labels", name): checked_name("labels", value)
        for name, value in labels.items()
    }


def checked_attributes(attributes: object) -> dict[str, Any]:
    """Return attributes, checked.

    Raises:
        InvalidItemError: they are not a mapping that JSON can represent, are too large, are nested
            deeper than 100 levels, or hold hidden characters.
    """
    if not isinstance(attributes, Mapping):
        msg = f"attributes: expected a mapping, got {type(attributes).__name__}"
        raise InvalidItemError(msg)
    found = dict(attributes)
    try:
        check_json(found)
    except ValueError as exc:
        msg = f"attributes: {exc}"
        raise InvalidItemError(msg) from exc
    size = _check_texts(found, 0)
    if size > ATTRIBUTES_BYTES_MAX:
        msg = f"attributes: expected at most {ATTRIBUTES_BYTES_MAX} bytes of values, got {size}"
        raise InvalidItemError(msg)
    return found


def _check_texts(value: Any, depth: int) -> int:
    """Refuse hidden characters and deep nesting; return the approximate size of JSON in bytes."""
    if depth > ATTRIBUTES_DEPTH_MAX:
        msg = f"attributes: expected at most {ATTRIBUTES_DEPTH_MAX} levels of nesting"
        raise InvalidItemError(msg)
    if isinstance(value, str):
        _need_visible("attributes", value)
        return len(value.encode()) + 2
    if isinstance(value, Mapping):
        inner = depth + 1
        return sum(
            _check_texts(key, inner) + _check_texts(entry, inner) + 2
            for key, entry in value.items()
        )
    if isinstance(value, list | tuple):
        return sum(_check_texts(entry, depth + 1) + 1 for entry in value) + 2
    return len(str(value)) if not isinstance(value, int) else 1 + value.bit_length() // 3
