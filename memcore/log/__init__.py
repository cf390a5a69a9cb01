"""The append-only log of a session and its live history."""

from memcore.log.draft import Draft
from memcore.log.head import Head, Segment
from memcore.log.history import SessionLog
from memcore.log.item import Prepared, decode_item, prepare_event, prepare_item
from memcore.log.ledger import count_message, new_ledger
from memcore.log.masked import AnyLedger, MaskedLedger
from memcore.log.positions import History
from memcore.log.registry import Drafts, Logs
from memcore.log.request import (
    Request,
    find_request,
    prepare_request,
    record_request,
    request_of,
)

__all__ = [
    "AnyLedger",
    "Draft",
    "Drafts",
    "Head",
    "History",
    "Logs",
    "MaskedLedger",
    "Prepared",
    "Request",
    "Segment",
    "SessionLog",
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
