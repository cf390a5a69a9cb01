"""Append-only log of a session, and its history in memory."""

from memcore.log.history import (
    AnyLedger,
    CachedSession,
    History,
    MaskedLedger,
    count_message,
    new_ledger,
)
from memcore.log.idempotency import (
    IdempotentRequest,
    find_request,
    prepare_request,
    record_request,
    request_of,
)
from memcore.log.session_txn import CachedSessions, SessionTxn, SessionTxns
from memcore.rows.head import Head, Segment
from memcore.rows.item import Prepared, decode_item, prepare_event, prepare_item

__all__ = [
    "AnyLedger",
    "CachedSession",
    "CachedSessions",
    "Head",
    "History",
    "IdempotentRequest",
    "MaskedLedger",
    "Prepared",
    "Segment",
    "SessionTxn",
    "SessionTxns",
    "count_message",
    "decode_item",
    "find_request",
    "new_ledger",
    "prepare_event",
    "prepare_item",
    "prepare_request",
    "record_request",
    "request_of",
]
