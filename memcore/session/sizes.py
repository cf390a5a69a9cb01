"""A limit on the size of items: what is over it is refused, or its long texts are kept beside it.

An item that is *offloaded* shows the beginning and the end of each long text (or what the caller's
function makes of it) and a reference. The texts lie in an event in front of it, which no context
shows: so they are exported, salvaged, forked and deleted like everything else. Ids, names, calls
and what providers sign stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from memcore.codec import encode_json
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import ITEM_BYTES_MAX
from memcore.options import checked_int
from memcore.session.texts import edit_texts, texts_in

__all__ = ["DIGEST_BYTES", "OFFLOADED", "REFERENCE", "Oversize", "SizeGuard", "size_guard"]

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
