"""Requests that change a file once, however often they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcore.kv import KeyValueTxn
from memcore.options import checked_idempotency_key

__all__ = ["Once", "Repeated", "once_of"]


class Repeated(Exception):  # noqa: N818 - a signal
    """The request was carried out before; ``result`` is what it returned."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, slots=True)
class Once:
    """An idempotency key, what it stands for, and what the request returns."""

    key: str
    content: bytes
    result: Any = 0

    def note(self, txn: KeyValueTxn) -> None:
        """Keep the result, in the transaction that changes the file and before it does.

        Raises:
            Repeated: the request was carried out.
            DuplicateRequestError: the key was used for another one.
        """
        told = txn.recall(self.key, self.content)
        if told is not None:
            raise Repeated(told[0])
        txn.remember(self.key, self.result, self.content)


def once_of(key: str | None, *said: str | bool) -> Once | None:
    """The request of a key that stands for these arguments; None without one.

    Raises:
        InvalidOptionError: the key is no str, empty or too long.
    """
    if key is None:
        return None
    return Once(checked_idempotency_key(key), repr(said).encode("utf-8", "surrogatepass"))
