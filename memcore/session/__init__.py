"""The object that a runtime holds: one append-only conversation in a scope."""

from memcore.session.address import Address, SessionOptions
from memcore.session.backing import Backing
from memcore.session.batch import Batch
from memcore.session.changes import Changes
from memcore.session.compactor import Compactor
from memcore.session.handle import Session
from memcore.session.leasing import Lease
from memcore.session.reading import Reading
from memcore.session.removal import (
    check_removals,
    delete_session,
    is_leaving,
    resume_removals,
    start_removal,
)
from memcore.session.state import SessionState

__all__ = [
    "Address",
    "Backing",
    "Batch",
    "Changes",
    "Compactor",
    "Lease",
    "Reading",
    "Session",
    "SessionOptions",
    "SessionState",
    "check_removals",
    "delete_session",
    "is_leaving",
    "resume_removals",
    "start_removal",
]
