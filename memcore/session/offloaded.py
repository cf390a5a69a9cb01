"""Reading back what an item that was too large left beside it."""

from __future__ import annotations

from typing import Any

from memcore.errors import InvalidOptionError, NotFoundError
from memcore.limits import ITEMS_PAGE
from memcore.log import SessionLog
from memcore.log.item import split_body
from memcore.model import ItemKind
from memcore.session.reading import Reading, decoded
from memcore.session.sizes import DIGEST_BYTES, REFERENCE
from memcore.store.base import ReadTxn

__all__ = ["read_offloaded"]


def read_offloaded(reading: Reading, reference: str) -> str:
    """The text that a reference of an offloaded item names.

    Raises:
        NotFoundError: no live item of the session holds it.
        InvalidOptionError: it is no reference.
    """
    key, _, number = reference.removeprefix(REFERENCE).partition(":")
    if len(key) != 2 * DIGEST_BYTES or not number.isascii() or not number.isdigit():
        msg = f"reference: expected '{REFERENCE}KEY:NUMBER', got {reference!r:.80}"
        raise InvalidOptionError(msg)
    wanted = key.encode()

    def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
        for stop in range(log.history.count, 0, -ITEMS_PAGE):
            start = max(stop - ITEMS_PAGE, 0)
            for row in log.rows(txn, start, stop):
                if type(row) is not tuple or row[3][0] != ItemKind.EVENT:
                    continue
                if wanted in split_body(row[3])[2]:
                    return reading.collect(log, txn, row[0], row[0] + 1)
        return []

    rows: list[Any] = reading.run(collect, [])
    for item in decoded(rows):
        texts = item.message["payload"]["texts"]
        if int(number[:9]) < len(texts):
            return str(texts[int(number)])
    msg = f"no live item of the session holds {reference!r:.80}"
    raise NotFoundError(msg)
