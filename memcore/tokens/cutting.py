"""Truncation by counting alone, for counters that know no token boundaries.

Counts of prefixes do not always grow (a letter may complete a token), so the search finds a large
part that fits, and what it returns has been counted: it is never above the budget.
"""

from __future__ import annotations

from collections.abc import Callable

from memcore.tokens.protocol import Truncated, checked_cut, marker_error

__all__ = ["cut_text"]


def cut_text(
    count: Callable[[str], int],
    text: str,
    max_tokens: int,
    *,
    keep: str = "head",
    marker: str | None = None,
) -> Truncated:
    """``TokenCounter.truncate`` by bisection between characters; about log2(len(text)) counts.

    Raises:
        InvalidItemError, InvalidOptionError: as ``TokenCounter.truncate``.
    """
    text, max_tokens = checked_cut(text, max_tokens, keep, marker)
    sign = marker or ""
    if sign and (alone := count(sign)) > max_tokens:
        raise marker_error(sign, alone, max_tokens)
    total = count(text)
    if total <= max_tokens:
        return Truncated(text, total, total)

    def part(chars: int) -> str:
        head = {"head": chars, "tail": 0, "middle": chars - chars // 2}[keep]
        return text[:head] + sign + text[len(text) - (chars - head) :]

    best, best_tokens = "", 0
    fits, over = 0, len(text)  # parts of fewer than ``fits`` characters were found to fit
    probe = min(over - 1, int(over * (max_tokens / total)))
    while fits < over:
        found = part(probe)
        tokens = count(found)
        if tokens <= max_tokens:
            best, best_tokens, fits = found, tokens, probe + 1
        else:
            over = probe
        probe = (fits + over) // 2
    return Truncated(best, best_tokens, total)
