"""Session: one append-only conversation in a scope."""

from memcore.session.batch import ChangeBatch
from memcore.session.change import Change
from memcore.session.compactor import Compactor
from memcore.session.delete import (
    check_removals,
    delete_session,
    is_leaving,
    resume_removals,
    start_removal,
)
from memcore.session.engine import Engine, SessionOptions, SessionRef
from memcore.session.lease import Lease
from memcore.session.read import SessionReader
from memcore.session.session import Session
from memcore.session.state import SessionState

__all__ = [
    "Change",
    "ChangeBatch",
    "Compactor",
    "Engine",
    "Lease",
    "Session",
    "SessionOptions",
    "SessionReader",
    "SessionRef",
    "SessionState",
    "check_removals",
    "delete_session",
    "is_leaving",
    "resume_removals",
    "start_removal",
]
