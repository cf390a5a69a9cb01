"""Counts of one encoding as an estimate for a model whose own tokenizer is not here."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from memcore.errors import InvalidOptionError
from memcore.tokens.textual import DEFAULT_PROFILE, MediaOption, TextCounter

__all__ = ["ScaledCounter", "scaled_name"]

FACTOR_MAX: Final = 100
_DIGITS: Final = re.compile(r"\d{1,3}")


def _number(what: str, value: Any, least: float) -> float:
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not math.isfinite(value) or not least <= value <= FACTOR_MAX:
        msg = f"{what}: expected a number of {least:g} to {FACTOR_MAX}, got {value!r:.80}"
        raise InvalidOptionError(msg)
    return float(f"{value:g}")  # as the id names it


def scaled_name(base: str, factor: float, per_digit: float) -> str:
    """The id of a scaled counter: ``BASE*FACTOR``, with ``+digits`` or ``+digits*PER_DIGIT``."""
    if not per_digit:
        return f"{base}*{factor:g}"
    digits = "+digits" if per_digit == 1 else f"+digits*{per_digit:g}"
    return f"{base}*{factor:g}{digits}"


class ScaledCounter(TextCounter):
    """``ceil(factor * tokens + per_digit * (digits - number pieces))`` by another counter.

    Number pieces are runs of up to three digits, each a token of the base; a tokenizer that splits
    every digit needs ``per_digit=1``. A message's framing and media are not scaled. The id names
    the base, the factor and the rule for digits, so other figures are another counter.

    Raises:
        InvalidOptionError: a factor outside 0.01 to 100, a ``per_digit`` outside 0 to 100.
    """

    __slots__ = ("_base", "_measure", "factor", "per_digit")

    def __init__(
        self,
        base: TextCounter,
        factor: float,
        *,
        per_digit: float = 0.0,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if not isinstance(base, TextCounter) or "*" in base.id or "@" in base.id:
            msg = (
                "base: expected a counter as of memcore.get_counter('o200k_base'), not scaled and "
                f"without a profile (give it here), got {getattr(base, 'id', type(base).__name__)}"
            )
            raise InvalidOptionError(msg)
        self.factor = _number("factor", factor, 0.01)
        self.per_digit = _number("per_digit", per_digit, 0)
        self._base = base
        self._measure = getattr(base, "measure", None)
        name = scaled_name(base.id, self.factor, self.per_digit)
        super().__init__(name, exact=False, profile=profile, media=media)

    def _scaled(self, tokens: int, split_digits: int) -> int:
        # Rounded first: 1.1 * 10 is a little more than 11.
        return math.ceil(round(self.factor * tokens + self.per_digit * split_digits, 6))

    def _measured(self, text: str) -> tuple[int, int]:
        """Tokens of the base, and how many more the digits are than their pieces."""
        if not self.per_digit:
            return self._base.count(text), 0
        if self._measure is not None:
            tokens, digits, pieces = self._measure(text)
            return tokens, digits - pieces
        found = _DIGITS.findall(text)
        return self._base.count(text), sum(map(len, found)) - len(found)

    def _tokens_of(self, text: str) -> int:
        return self._scaled(*self._measured(text))

    def _tokens_of_all(self, texts: list[str]) -> int:
        if not self.per_digit:
            return self._scaled(sum(self._base.count_many(texts)), 0)
        measured = [self._measured(text) for text in texts]
        return self._scaled(sum(m[0] for m in measured), sum(m[1] for m in measured))
