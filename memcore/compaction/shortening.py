"""Shortening what is large: outputs, texts and arguments of calls, exactly to a token count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final

from memcore.compaction.reading import Edited, Reading, read, shorten
from memcore.compaction.reducer import Reduction, Visible
from memcore.compaction.settings import Settings, checked_names
from memcore.errors import InvalidOptionError
from memcore.formats.editing import value_at
from memcore.formats.parts import Arguments
from memcore.model import ItemKind, Mask
from memcore.options import checked_int

__all__ = ["ElideOutputs", "TruncateArguments"]

TOKENS_LEAST: Final = 16
"""Below this, little but the marker would be left."""
DEPTH_MAX: Final = 64
"""Strings that are nested deeper in arguments stay."""
_KINDS: Final = {"user": ItemKind.USER, "assistant": ItemKind.ASSISTANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElideOutputs(Settings):
    """Cuts large outputs to a token count, with a marker where something is left out.

    The count is that of the text alone, by the session's counter. Several text blocks of one result
    become one; images and other media stay.

    Raises:
        InvalidOptionError: ``max_tokens`` below 16, or an unknown ``keep`` or kind.
    """

    name: ClassVar[str] = "elide_outputs"

    max_tokens: int = 2_000
    """What stays of one output, the marker included."""
    keep: str = "middle"
    """``head``, ``tail``, or ``middle`` for both ends (as ``TokenCounter.truncate``)."""
    exclude_tools: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("result",)
    """Which of ``result``, ``user`` and ``assistant`` texts are cut."""

    def __post_init__(self) -> None:
        checked_int("max_tokens", self.max_tokens, least=TOKENS_LEAST)
        checked_keep(self.keep)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)
        kinds = checked_names("kinds", self.kinds, known=("result", *_KINDS))
        object.__setattr__(self, "kinds", kinds)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the items with texts above ``max_tokens``."""
        reading = read(items)
        edits: dict[int, Edited] = {}
        if "result" in self.kinds:
            for at, result, name, _ in reading.results():
                if name in self.exclude_tools or items[at].tokens <= self.max_tokens:
                    continue
                text = result.text
                cut = shorten(text, self.max_tokens, self.keep, by)
                if cut is not text:
                    edits.setdefault(at, {}).update(result.with_text(cut))
        for at, leaf in reading.texts(*(_KINDS[kind] for kind in self.kinds if kind in _KINDS)):
            if items[at].tokens > self.max_tokens:
                cut = shorten(leaf.text, self.max_tokens, self.keep, by)
                if cut is not leaf.text:
                    edits.setdefault(at, {})[leaf.path] = cut
        return reading.masks(edits, "elided", by)


def checked_keep(keep: Any) -> None:
    """Refuse what ``TokenCounter.truncate`` does not know.

    Raises:
        InvalidOptionError: it is none of ``head``, ``tail`` and ``middle``.
    """
    if keep not in ("head", "tail", "middle"):
        msg = f"keep: expected 'head', 'tail' or 'middle', got {keep!r:.80}"
        raise InvalidOptionError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateArguments(Settings):
    """Shortens large strings in the arguments of older calls; the JSON keeps its shape and keys.

    Arguments that are no valid JSON stay, and so do the actions of shell, patch and computer calls,
    whose form providers check.

    Raises:
        InvalidOptionError: ``max_tokens`` below 16, or a negative ``keep_last``.
    """

    name: ClassVar[str] = "truncate_arguments"

    max_tokens: int = 500
    """What stays of one string, the marker included."""
    keep_last: int = 3
    """The calls of so many of the newest calling items stay as they are."""
    keep: str = "head"
    exclude_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_int("max_tokens", self.max_tokens, least=TOKENS_LEAST)
        checked_int("keep_last", self.keep_last)
        checked_keep(self.keep)
        names = checked_names("exclude_tools", self.exclude_tools)
        object.__setattr__(self, "exclude_tools", names)

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[Mask]:
        """Masks of the calling items with strings above ``max_tokens``."""
        reading = read(items)
        edits: dict[int, Edited] = {}
        last = self._first_kept(reading)
        for at, arguments in reading.arguments():
            if at >= last or arguments.name in self.exclude_tools:
                continue
            if items[at].tokens > self.max_tokens and not items[at].protected:
                value = value_at(items[at].message, arguments.path)
                cut = self._shortened(value, arguments, by)
                if cut is not value:
                    edits.setdefault(at, {})[arguments.path] = cut
        return reading.masks(edits, "arguments", by)

    def _first_kept(self, reading: Reading) -> int:
        if not self.keep_last:
            return len(reading.items)
        calling = [at for at, slots in enumerate(reading.binding.calls) if slots]
        return calling[-self.keep_last] if self.keep_last <= len(calling) else 0

    def _shortened(self, value: Any, arguments: Arguments, by: Reduction) -> Any:
        if arguments.form != "json":
            return self._walk(value, by, 0)
        try:
            parsed = json.loads(value, parse_constant=_refuse, parse_float=_exact)
            cut = self._walk(parsed, by, 0)
            return value if cut is parsed else _written(cut)
        except (ValueError, RecursionError):
            return value  # no JSON, or none that could be written again as it was

    def _walk(self, value: Any, by: Reduction, depth: int) -> Any:
        """The value with its large strings shortened; the same object if there are none."""
        if isinstance(value, str):
            return shorten(value, self.max_tokens, self.keep, by)
        if depth == DEPTH_MAX or not isinstance(value, dict | list):
            return value
        made: Any = dict(value) if isinstance(value, dict) else list(value)
        changed = False
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            made[key] = self._walk(entry, by, depth + 1)
            changed = changed or made[key] is not entry
        return made if changed else value


def _refuse(constant: str) -> None:
    msg = f"{constant} is no JSON"
    raise ValueError(msg)


def _exact(number: str) -> float:
    """The number; refused if it would be written again as another one."""
    found = float(number)
    if Decimal(repr(found)) != Decimal(number):
        _refuse(number)
    return found


def _written(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate: only its escape can be sent
        return json.dumps(value, separators=(",", ":"))
    return text
