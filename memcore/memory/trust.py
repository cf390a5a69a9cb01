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
from memcore.model import ItemKind

__all__ = [
    "ACTIVE_BY",
    "BY",
    "KINDS",
    "STATUSES",
    "TEXT_BYTES_MAX",
    "UNSOURCED_BY",
    "by_of_item",
    "checked_attributes",
    "checked_labels",
    "checked_name",
    "checked_text",
    "is_pasted",
    "is_weaker",
    "normalised",
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


def by_of_item(kind: int) -> str:
    """Return the trust in an item of a kind."""
    return _BY_KIND.get(ItemKind(kind), "import")


def is_weaker(by: str, than: str) -> bool:
    """Return True if one trust is lower than another."""
    return BY.index(by) > BY.index(than)


def weakest(found: Iterable[str]) -> str:
    """Return the lowest of several trusts."""
    return max(found, key=BY.index)


# --- Texts as they are compared -------------------------------------------------------------------

_SPACE: Final = re.compile(r"\s+")
_WORD: Final = re.compile(r"\w+")
_ENDS: Final = " .!?\u3002"  # full width signs become these by NFKC


def normalised(text: str) -> str:
    """Return a text as it is compared: NFKC, case folded, single spaces, no final full stop."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _SPACE.sub(" ", folded).strip(_ENDS)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


# --- Pasted parts of what a user wrote ------------------------------------------------------------

_QUOTE_WORDS: Final = 5
"""Least words of a quotation that counts as pasted: shorter ones are names and terms."""
_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_LINES: Final = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_QUOTES: Final = re.compile(
    r'"""(.+?)(?:"""|\Z)|"([^"]+)"|“([^”]+)”|„([^“”]+)[“”]|«([^»]+)»|「([^」]+)」', re.DOTALL
)


def is_pasted(statement: str, texts: Iterable[str]) -> bool:
    """Return True if a statement rests on pasted parts of a user's texts.

    Pasted are fenced blocks, lines that begin with ``>``, and quotations of five words or more. A
    statement rests on them if one of its words occurs there and nowhere in the user's own words.
    """
    own: set[str] = set()
    pasted: set[str] = set()
    for text in texts:
        rest = text
        for pattern in (_FENCE, _LINES, _QUOTES):
            for match in pattern.finditer(rest):
                words = _words(match[0])
                if pattern is not _QUOTES or len(_WORD.findall(match[0])) >= _QUOTE_WORDS:
                    pasted |= words
                else:
                    own |= words
            rest = pattern.sub(" ", rest)
        own |= _words(rest)
    return bool(_words(statement) & (pasted - own))


# --- What a text may hold -------------------------------------------------------------------------

TEXT_BYTES_MAX: Final = 16 * 1024
"""Largest text of a memory in UTF-8: it is a statement, not a document."""
ATTRIBUTES_BYTES_MAX: Final = 16 * 1024
NAME_CHARS_MAX: Final = 256
LABELS_MAX: Final = 32
_HIDDEN: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and line feed
    "\u00ad\u061c\u180e"
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # zero width, bidi
    "\ud800-\udfff"  # not characters
    "\U000e0000-\U000e0fff"  # tags, and variation selectors that no font uses
    "]|"
    "(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])|[\u200c\u200d]{2}"
)
"""Characters that nobody sees. Joiners are allowed between letters that are not ASCII, where Indic
and Arabic scripts and emoji need them."""
_CARRIAGE: Final = re.compile("\r\n?")


def _need_visible(name: str, text: str) -> None:
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
            f"text: has {len(text)} characters, at most {TEXT_BYTES_MAX} bytes are allowed; "
            "remember a statement, and store the document as a blob"
        )
        raise InvalidItemError(msg)
    told = _CARRIAGE.sub("\n", text)
    _need_visible("text", told)
    if not normalised(told):
        msg = "text: is empty"
        raise InvalidItemError(msg)
    return told


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
        InvalidItemError: they are not a mapping that JSON can represent, are too large, or hold
            hidden characters.
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
    size = _check_texts(found)
    if size > ATTRIBUTES_BYTES_MAX:
        msg = f"attributes: expected at most {ATTRIBUTES_BYTES_MAX} bytes of values, got {size}"
        raise InvalidItemError(msg)
    return found


def _check_texts(value: Any) -> int:
    """Refuse hidden characters in a JSON value; return its approximate size in bytes."""
    if isinstance(value, str):
        _need_visible("attributes", value)
        return len(value.encode()) + 2
    if isinstance(value, Mapping):
        return sum(_check_texts(key) + _check_texts(entry) + 2 for key, entry in value.items())
    if isinstance(value, list | tuple):
        return sum(_check_texts(entry) + 1 for entry in value) + 2
    return len(str(value)) if not isinstance(value, int) else 1 + value.bit_length() // 3
