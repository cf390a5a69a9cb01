"""What must go and what must stay: erasures with receipts, legal holds, opting out of memory."""

from memcore.retention.compacting import marking_gone
from memcore.retention.erasing import (
    Asked,
    count_pending,
    erase,
    finish_erasures,
    resume_erasures,
    would_erase,
)
from memcore.retention.hold import Hold, hold, holds, release
from memcore.retention.opting import opt_in, opt_out, opted_out
from memcore.retention.receipt import ErasureReceipt, verify_receipt
from memcore.retention.signing import receipt_key

__all__ = [
    "Asked",
    "ErasureReceipt",
    "Hold",
    "count_pending",
    "erase",
    "finish_erasures",
    "hold",
    "holds",
    "marking_gone",
    "opt_in",
    "opt_out",
    "opted_out",
    "receipt_key",
    "release",
    "resume_erasures",
    "verify_receipt",
    "would_erase",
]
