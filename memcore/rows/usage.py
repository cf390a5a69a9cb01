"""Usage row of a session: token usage reported by providers, and the resulting calibration.

One small row per session, ``05 | scope | session | 09 | 0``, written only by usage reports: the
last few models with their factors and anchors, most recently reported first. It is not part of the
log: losing it only costs accuracy, so a damaged row may be overwritten without being read.

Nothing is removed from it when the history is truncated, compacted or recounted: an anchor records
the messages that it applies to, and readers compare. Numbers of seqs and views are never reused, so
an anchor whose item was undone applies again only if a checkpoint restores the item; an anchor
covered by a compaction applies again if the compaction is reverted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.limits import USAGE_MODELS_MAX
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Anchor",
    "Learned",
    "Scale",
    "inherit_usage",
    "learn",
    "pack_usage",
    "read_usage",
    "unpack_usage",
    "usage_key",
    "write_usage",
]


# --- Calibration from usage reports: pure arithmetic on integers ----------------------------------
# A provider bills ``a * counted + b`` input tokens for a request: ``a`` is the number of its tokens
# per token of the session's counter, ``b`` the tokens that the counter never sees (tool schemas, a
# system prompt outside the session, the provider's additions). One report cannot separate the two,
# so it is kept as an **anchor**; only the difference between two reports, the second on a superset
# of the messages, determines the **factor** ``a``, as ``b`` cancels out. The estimate is ``reported
# + factor * counted since``.
#
# The factor is an average over counted tokens, weighted by age (an EWMA), clamped to 0.8 .. 2.0.
# LangChain's ``count_tokens_approximately`` clamps the same idea to 1.0 .. 1.25, which is too
# narrow: the tokenizer of Claude Opus 4.7 and later is reported at 1.53 of o200k_base
# (sammcj/ingest PR #65).

MILLION: Final = 1_000_000
"""Factors are in millionths: integers give the same estimate on every machine."""
FACTOR_MIN_PPM: Final = 800_000
FACTOR_MAX_PPM: Final = 2_000_000
SAMPLE_MIN_PPM: Final = 200_000
SAMPLE_MAX_PPM: Final = 5_000_000
"""Largest plausible ratio of two differences, as ``SAMPLE_MIN_PPM`` is the smallest.

Ratios outside come from changed tool schemas or system prompts, not from the tokenizer: the largest
reported for one message is 4.6 (sammcj/ingest PR #65)."""
EWMA_TOKENS: Final = 8_192
"""Maximum weight of the past, in counted tokens.

A difference of ``d`` counted tokens moves the factor by ``d / (d + seen)`` of the distance, where
``seen`` is the number of tokens seen before, capped at this."""
PRIOR_TOKENS: Final = 16
"""Weight of the initial factor 1.0, so that a line of three words cannot determine the factor."""


class Anchor(NamedTuple):
    """A report, and the messages that it applies to."""

    input_tokens: int
    """Tokens that the provider billed."""
    counted_tokens: int
    """Tokens of the messages by the session's counter."""
    seq: int
    """Last live item among the messages; 0 if none was live."""
    cut_seq: int
    """First item after their cut."""
    view: tuple[int, int]
    """``(session, number)`` of the view that the head referred to; zeros without one."""
    policy: str
    """Policy with which they were rendered."""

    def difference(self, later: Anchor) -> tuple[int, int]:
        """Return the additional ``(input, counted)`` tokens of a later report; zeros if unusable.

        With the same cut, this report's messages are a prefix of the later one's. If the cut has
        moved, messages were both added and removed: then the difference counts only if it is at
        least half of the messages, so that differences in kind are small in comparison.
        """
        billed = later.input_tokens - self.input_tokens
        counted = later.counted_tokens - self.counted_tokens
        if (self.view, self.policy) != (later.view, later.policy):
            return 0, 0
        if self.cut_seq == later.cut_seq:
            return billed, counted
        if 2 * abs(counted) < max(self.counted_tokens, later.counted_tokens):
            return 0, 0
        return (billed, counted) if counted > 0 else (-billed, -counted)


class Scale(NamedTuple):
    """Conversion from the session's counter to the provider's: a line through one point."""

    factor_ppm: int = MILLION
    input_tokens: int = 0
    counted_tokens: int = 0

    def estimate(self, counted: int) -> int:
        """Estimate the billed tokens for a number of counted tokens, rounded up.

        Below the anchor the line may be too low: the estimate is at least 0.8 per counted token.
        """
        beyond = -(-self.factor_ppm * (counted - self.counted_tokens) // MILLION)
        return max(self.input_tokens + beyond, -(-FACTOR_MIN_PPM * counted // MILLION))

    def allowed(self, budget: int) -> int:
        """Return the most counted tokens whose estimate is within the budget; negative if none."""
        beyond = (budget - self.input_tokens) * MILLION // self.factor_ppm
        return min(self.counted_tokens + beyond, budget * MILLION // FACTOR_MIN_PPM)


class Learned(NamedTuple):
    """Calibration of one model's tokenizer against one counter."""

    model: str | None
    counter: str
    factor_ppm: int = MILLION
    seen_tokens: int = 0
    """Counted tokens that the factor is based on, at most EWMA_TOKENS."""
    reports: int = 0
    anchor: Anchor | None = None

    def scale(self, *, anchored: bool) -> Scale:
        """Return the line through the anchor if that applies, otherwise through the origin."""
        if self.anchor is None or not anchored:
            return Scale(self.factor_ppm)
        return Scale(self.factor_ppm, self.anchor.input_tokens, self.anchor.counted_tokens)

    def after(self, report: Anchor, *, live: bool, stands: bool) -> Learned:
        """Return the calibration after a report.

        Args:
            report: billed and counted tokens.
            live: True if the item at the known anchor is still live.
            stands: True if the report's messages are still a prefix of the next request. Otherwise
                the report updates the factor, but does not become an anchor.
        """
        factor, seen, anchor = self.factor_ppm, self.seen_tokens, self.anchor
        if anchor is not None and live and anchor.seq <= report.seq:
            billed, counted = anchor.difference(report)
            factor, seen = learn(factor, seen, input_delta=billed, counted_delta=counted)
        late = anchor is not None and live and stands and self._is_newer(anchor, report)
        if stands and not late:
            anchor = report
        return self._replace(
            factor_ppm=factor, seen_tokens=seen, reports=self.reports + 1, anchor=anchor
        )

    @staticmethod
    def _is_newer(anchor: Anchor, report: Anchor) -> bool:
        """Return True if the report is late: the anchor covers more of the same history."""
        same = (anchor.view, anchor.policy) == (report.view, report.policy)
        return same and anchor.seq > report.seq


def learn(
    factor_ppm: int, seen_tokens: int, *, input_delta: int, counted_delta: int
) -> tuple[int, int]:
    """Update ``(factor, seen tokens)`` with the difference of two reports.

    Unchanged if either difference is not positive, or if their ratio is implausible.
    """
    if input_delta <= 0 or counted_delta <= 0:
        return factor_ppm, seen_tokens
    sample = input_delta * MILLION // counted_delta
    if not SAMPLE_MIN_PPM <= sample <= SAMPLE_MAX_PPM:
        return factor_ppm, seen_tokens
    sample = min(max(sample, FACTOR_MIN_PPM), FACTOR_MAX_PPM)
    weight = min(counted_delta, EWMA_TOKENS)
    step = (sample - factor_ppm) * weight // (PRIOR_TOKENS + seen_tokens + weight)
    return factor_ppm + step, min(seen_tokens + weight, EWMA_TOKENS)


# --- The usage row of a session: usage reported by providers, and the resulting calibration -------

_END: Final = 2**63
_WRONG: Final = (
    *(CorruptValueError, LookupError, TypeError, ValueError, AttributeError),
    RecursionError,
)
"""Errors raised by decoding a body that no writer produces."""


def usage_key(scope: int, session: int) -> bytes:
    """Return the key of a session's usage row."""
    return keys.session_row(scope, session, Row.USAGE, 0)


def read_usage(txn: ReadTxn, scope: int, session: int) -> list[Learned]:
    """Read the calibrations, most recently reported model first; empty if nothing was reported.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = keys.session_row(scope, session, Row.USAGE, 0)
    value = txn.get(key)
    if value is None:
        return []
    flags, body = open_value(key, value)
    return unpack_usage(key, body, flags)


def write_usage(txn: Txn, scope: int, session: int, known: list[Learned]) -> None:
    """Write the calibrations, most recent first; those beyond the limit are dropped."""
    key = usage_key(scope, session)
    txn.put(key, seal_value(key, *pack_usage(known[:USAGE_MODELS_MAX])))


def inherit_usage(txn: Txn, scope: int, parent: int, fork: int, *, at: int) -> None:
    """Copy a parent's calibrations to a fork, without anchors after the last shared seq.

    The fork will use the seqs after it for its own items.
    """
    known: list[Learned] = []
    with suppress(CorruptValueError):  # check() reports it; the fork's history does not need it
        known = read_usage(txn, scope, parent)
    if known:
        write_usage(txn, scope, fork, [_up_to(each, at) for each in known])


def _up_to(learned: Learned, seq: int) -> Learned:
    anchor = learned.anchor
    return learned if anchor is None or anchor.seq <= seq else learned._replace(anchor=None)


def pack_usage(known: list[Learned]) -> tuple[bytes, int]:
    """Return the row's body and the codec's flags."""
    return encode_json([_fields(each) for each in known])


def _fields(learned: Learned) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": learned.model,
        "counter": learned.counter,
        "factor_ppm": learned.factor_ppm,
        "seen": learned.seen_tokens,
        "reports": learned.reports,
    }
    anchor = learned.anchor
    if anchor is not None:
        found["anchor"] = {
            "input": anchor.input_tokens,
            "counted": anchor.counted_tokens,
            "seq": anchor.seq,
            "cut": anchor.cut_seq,
            "view": list(anchor.view),
            "policy": anchor.policy,
        }
    return found


def unpack_usage(key: bytes, body: bytes, flags: int) -> list[Learned]:
    """Unpack the value made by ``pack_usage``.

    Raises:
        CorruptValueError: the value cannot have come from ``pack_usage``.
    """
    with decoding(key, "usage"):
        found = decode_json(body, flags)
        if not isinstance(found, list):
            raise TypeError
        return [_learned(fields) for fields in found]


def _learned(fields: dict[str, Any]) -> Learned:
    model, counter = fields["model"], fields["counter"]
    if not (model is None or isinstance(model, str)) or not isinstance(counter, str):
        raise TypeError
    anchor = fields.get("anchor")
    return Learned(
        model,
        counter,
        factor_ppm=_number(fields["factor_ppm"], FACTOR_MIN_PPM, FACTOR_MAX_PPM),
        seen_tokens=_number(fields["seen"], most=EWMA_TOKENS),
        reports=_number(fields["reports"]),
        anchor=None if anchor is None else _anchor(anchor),
    )


def _anchor(fields: dict[str, Any]) -> Anchor:
    policy = fields["policy"]
    if not isinstance(policy, str):
        raise TypeError
    owner, number = fields["view"]
    return Anchor(
        input_tokens=_number(fields["input"]),
        counted_tokens=_number(fields["counted"]),
        seq=_number(fields["seq"]),
        cut_seq=_number(fields["cut"]),
        view=(_number(owner), _number(number)),
        policy=policy,
    )


def _number(found: Any, least: int = 0, most: int = _END) -> int:
    if type(found) is not int or not least <= found <= most:
        raise ValueError
    return found
