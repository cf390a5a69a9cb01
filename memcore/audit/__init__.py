"""Tamper-evident chain over the stored bytes: started, anchored outside, verified, truncated.

The chains themselves are written by ``memcore.store.audit_log``, inside each transaction.
"""

from __future__ import annotations

from memcore.audit.anchors import AnchorFile, AnchorLines, read_anchor
from memcore.audit.start import (
    Audit,
    anchor_all,
    chainer_for,
    end_scope,
    end_session,
    record_event,
    start_audit,
)

__all__ = [
    "AnchorFile",
    "AnchorLines",
    "Audit",
    "anchor_all",
    "chainer_for",
    "end_scope",
    "end_session",
    "read_anchor",
    "record_event",
    "start_audit",
]
