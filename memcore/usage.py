"""The usage row of a session: what providers reported, and what follows from it.

One small row a session, ``05 | scope | session | 09 | 0``, written only by those who report: the
last few models with their factors and anchors, the one reported last first. It is no part of the
log: a lost one costs nothing but accuracy, so whoever writes it anew need not be able to read it.

Nothing is taken out of it when the history is cut, compacted or recounted: an anchor says what it
is about, and whoever reads it compares. Seqs and views are never numbered twice, so an anchor that
does not apply because its item was undone applies again only when a checkpoint brings the item
back; one that a compaction covers does when the compaction is taken back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from memcore import keys
from memcore.calibration import EWMA_TOKENS, FACTOR_MAX_PPM, FACTOR_MIN_PPM, Anchor, Learned
from memcore.codec import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.limits import USAGE_MODELS_MAX
from memcore.store.base import ReadTxn, Txn

__all__ = ["inherit_usage", "pack_usage", "read_usage", "unpack_usage", "usage_key", "write_usage"]

_END: Final = 2**63
_WRONG: Final = (
    *(CorruptValueError, LookupError, TypeError, ValueError, AttributeError),
    RecursionError,
)
"""What reading a body raises that no writer made."""


def usage_key(scope: int, session: int) -> bytes:
    """The key of a session's usage row."""
    return keys.session_row(scope, session, Row.USAGE, 0)


def read_usage(txn: ReadTxn, scope: int, session: int) -> list[Learned]:
    """What is known, the model reported last first; empty if nothing was reported.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = usage_key(scope, session)
    value = txn.get(key)
    if value is None:
        return []
    flags, body = open_value(key, value)
    return unpack_usage(key, body, flags)


def write_usage(txn: Txn, scope: int, session: int, known: list[Learned]) -> None:
    """Write what is known, the model reported last first; those that do not fit are forgotten."""
    key = usage_key(scope, session)
    txn.put(key, seal_value(key, *pack_usage(known[:USAGE_MODELS_MAX])))


def inherit_usage(txn: Txn, scope: int, parent: int, fork: int, *, at: int) -> None:
    """Give a fork what its parent knows; anchors behind its last shared seq stay there.

    The fork will give the seqs behind it to items of its own.
    """
    known: list[Learned] = []
    with suppress(CorruptValueError):  # check() reports it; the fork's history needs none of it
        known = read_usage(txn, scope, parent)
    if known:
        write_usage(txn, scope, fork, [_up_to(each, at) for each in known])


def _up_to(learned: Learned, seq: int) -> Learned:
    anchor = learned.anchor
    return learned if anchor is None or anchor.seq <= seq else replace(learned, anchor=None)


def pack_usage(known: list[Learned]) -> tuple[bytes, int]:
    """The row's body and the codec's flags."""
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
    """What ``pack_usage`` packed.

    Raises:
        CorruptValueError: it is nothing that ``pack_usage`` makes.
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
