"""The object that a runtime holds: one append-only conversation in a scope."""

from memcore.session.address import Address, Backing, SessionOptions
from memcore.session.batch import Batch
from memcore.session.changes import Changes
from memcore.session.handle import Session
from memcore.session.reading import Reading
from memcore.session.removal import delete_session

__all__ = [
    "Address",
    "Backing",
    "Batch",
    "Changes",
    "Reading",
    "Session",
    "SessionOptions",
    "delete_session",
]
