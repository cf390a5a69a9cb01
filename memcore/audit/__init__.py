"""Tamper-evident chains over the stored bytes: started, anchored outside, verified, truncated.

The chains themselves are written by ``memcore.store.audit_log``, within each transaction.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {
        "anchors": "AnchorFile AnchorLines read_anchor",
        "start": "Audit anchor_all chainer_for end_scope end_session record_event start_audit",
        "verify": "cut_chain",
    },
)
