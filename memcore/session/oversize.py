"""Size limit of items: refuse what is above it, or move long texts to blobs.

An item that is *offloaded* shows the beginning and the end of each long text (or what the caller's
function makes of it) and a reference. The texts lie in an event in front of it, which no context
shows: so they are exported, salvaged, forked and deleted like everything else. Ids, names, calls
and what providers sign stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from memcore.codec.keys import blake2b
from memcore.codec.values import encode_json
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import ITEM_BYTES_MAX
from memcore.options import checked_int

__all__ = [
    "DIGEST_BYTES",
    "OFFLOADED",
    "REFERENCE",
    "Oversize",
    "SizeGuard",
    "edit_texts",
    "size_guard",
    "texts_in",
]


# --- The texts of a message that may be made shorter: none that pairs, providers or media hang on -

_KEPT: Final = frozenset(
    (
        *("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "name", "type"),
        *("role", "signature", "thought_signature", "thoughtSignature", "encrypted_content"),
        *("data", "file_data", "image_url", "url", "file_id", "file_url", "namespace", "status"),
    )
)
"""What pairs, providers and media hang on."""
_SIGNED: Final = frozenset(("thinking", "redacted_thinking", "reasoning", "compaction"))


def texts_in(value: Any) -> Iterator[str]:
    """The texts, in the order in which ``edit_texts`` numbers them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from texts_in(entry)
    elif isinstance(value, Mapping) and value.get("type") not in _SIGNED:
        for name, entry in value.items():
            if name in _KEPT and isinstance(entry, str):
                continue
            inner = _parsed(entry) if name == "arguments" and isinstance(entry, str) else None
            yield from texts_in(entry if inner is None else inner)


def edit_texts(value: Any, edit: Callable[[int, str], str]) -> Any:
    """A copy with what ``edit(number, text)`` makes of each text; arguments of calls stay JSON."""
    return _TextWalk(edit).value(value)


class _TextWalk:
    """One walk through a value; it counts the texts."""

    def __init__(self, edit: Callable[[int, str], str]) -> None:
        self._edit = edit
        self._at = -1

    def value(self, value: Any) -> Any:
        """The value with its texts edited."""
        if isinstance(value, str):
            self._at += 1
            return self._edit(self._at, value)
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        if not isinstance(value, Mapping) or value.get("type") in _SIGNED:
            return value
        return {name: self._member(name, entry) for name, entry in value.items()}

    def _member(self, name: str, value: Any) -> Any:
        if name in _KEPT and isinstance(value, str):
            return value
        if name == "arguments" and isinstance(value, str):
            inner = _parsed(value)
            if inner is not None:
                edited = self.value(inner)
                return value if edited == inner else json.dumps(edited, ensure_ascii=False)
        return self.value(value)


def _parsed(text: str) -> Any:
    """The object or list that a call's arguments are, None if they are something else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict | list):
            return found
    return None


# --- A limit on the size of items: what is over it is refused, or its long texts are kept ---------

Oversize: TypeAlias = str | Callable[[str], str]
"""``"reject"``, ``"offload"``, or what makes a summary of a long text."""
OFFLOADED: Final = "offloaded"
"""Type of the event that holds the texts."""
REFERENCE: Final = "offload:"
ITEM_BYTES_LEAST: Final = 256
_MARKER: Final = "[offloaded: {:,} characters, to be read by {}]"
_ENDS_CHARS: Final = 400
"""So much of the beginning and of the end is shown, or an eighth of the limit."""
DIGEST_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """How large an item may be, and what becomes of a larger one."""

    item_bytes: int
    oversize: Oversize = "reject"

    def replaced(self, item: Any, size: int, seed: bytes) -> tuple[Any, dict[str, Any]]:
        """``(item, payload)``: the item with its longest texts replaced, and the texts.

        Raises:
            InvalidItemError: it is to be refused, or stays too large without its texts.
        """
        if self.oversize == "reject":
            raise self._refusal(size)
        encoded = encode_json(item)[0]
        around = size - len(encoded)
        key = blake2b(encoded, digest_size=DIGEST_BYTES, key=seed).hexdigest()
        lengths = [len(text) for text in texts_in(item)]
        order = sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
        # Few are chosen at first: each round takes twice as many, until what is left fits.
        count = 1
        while True:
            chosen = set(order[:count])
            texts: list[str] = []

            def replace(at: int, text: str, chosen: set[int] = chosen) -> str:
                if at not in chosen:
                    return text
                made = self.shown(text, f"{REFERENCE}{key}:{len(texts)}")  # noqa: B023 - called below
                if made != text:
                    texts.append(text)  # noqa: B023 - called below
                return made

            shown = edit_texts(item, replace)
            left = len(encode_json(shown)[0]) + around
            if left <= self.item_bytes:
                return shown, {"key": key, "texts": texts}
            if count >= len(order):
                raise self._refusal(size, left)
            count *= 2

    def shown(self, text: str, reference: str) -> str:
        """What stands in the place of a text.

        Raises:
            InvalidItemError: the caller's function gives no str.
        """
        marker = _MARKER.format(len(text), reference)
        if len(text) <= len(marker):
            return text
        if callable(self.oversize):
            summary = self.oversize(text)
            if not isinstance(summary, str):
                msg = f"oversize: the function gave {type(summary).__name__}, expected a str"
                raise InvalidItemError(msg)
        else:
            ends = min(_ENDS_CHARS, self.item_bytes // 8)
            summary = f"{text[:ends]}\n[…]\n{text[-ends:]}"
        shown = f"{marker}\n{summary}"
        return shown if len(shown) < len(text) else text

    def _refusal(self, size: int, left: int | None = None) -> InvalidItemError:
        rest = "" if left is None else f", and {left} without its long texts"
        other = ", or open the database with oversize='offload'" if left is None else ""
        msg = (
            f"the item is {size} bytes as JSON{rest}; item_bytes= allows {self.item_bytes}: store "
            f"the large part as a blob{other}"
        )
        return InvalidItemError(msg)


def size_guard(item_bytes: object, oversize: object) -> SizeGuard | None:
    """The guard that the options of ``memcore.open`` ask for, None for none.

    Raises:
        InvalidOptionError: one of them is unknown, of a wrong type or out of range.
    """
    known = oversize is None or oversize in ("reject", "offload") or callable(oversize)
    if not known:
        msg = f"oversize: expected 'reject', 'offload' or a callable, got {oversize!r:.40}"
        raise InvalidOptionError(msg)
    if item_bytes is None:
        if oversize is not None:
            msg = "oversize: needs item_bytes=, the size above which an item is too large"
            raise InvalidOptionError(msg)
        return None
    limit = checked_int("item_bytes", item_bytes, least=ITEM_BYTES_LEAST)
    if limit > ITEM_BYTES_MAX:
        msg = f"item_bytes: expected at most {ITEM_BYTES_MAX}, got {limit}"
        raise InvalidOptionError(msg)
    return SizeGuard(limit, oversize or "reject")  # type: ignore[arg-type]
