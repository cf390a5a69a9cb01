# Written by scripts/make_faces from __init__.py.
from memcore.audit.anchors import AnchorFile as AnchorFile
from memcore.audit.anchors import AnchorLines as AnchorLines
from memcore.audit.anchors import read_anchor as read_anchor
from memcore.audit.start import Audit as Audit
from memcore.audit.start import anchor_all as anchor_all
from memcore.audit.start import chainer_for as chainer_for
from memcore.audit.start import end_scope as end_scope
from memcore.audit.start import end_session as end_session
from memcore.audit.start import record_event as record_event
from memcore.audit.start import start_audit as start_audit
from memcore.audit.verify import cut_chain as cut_chain

__all__ = [
    "AnchorFile",
    "AnchorLines",
    "Audit",
    "anchor_all",
    "chainer_for",
    "cut_chain",
    "end_scope",
    "end_session",
    "read_anchor",
    "record_event",
    "start_audit",
]
