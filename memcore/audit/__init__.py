"""A tamper-evident chain over the stored bytes: begun, anchored outside, verified, cut.

The chains themselves are written by ``memcore.store.recording``, inside each transaction.
"""

from __future__ import annotations

from memcore.audit.anchors import AnchorFile, AnchorLines, read_anchor
from memcore.audit.events import end_scope, end_session, record_event
from memcore.audit.options import Audit
from memcore.audit.starting import anchor_all, chainer_for, start_audit

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
