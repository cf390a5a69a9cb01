# Written by scripts/make_faces from __init__.py.
from memcore.session.batch import ChangeBatch as ChangeBatch
from memcore.session.change import Change as Change
from memcore.session.compactor import Compactor as Compactor
from memcore.session.delete import check_removals as check_removals
from memcore.session.delete import delete_session as delete_session
from memcore.session.delete import is_leaving as is_leaving
from memcore.session.delete import resume_removals as resume_removals
from memcore.session.delete import start_removal as start_removal
from memcore.session.engine import Engine as Engine
from memcore.session.engine import SessionOptions as SessionOptions
from memcore.session.engine import SessionRef as SessionRef
from memcore.session.lease import Lease as Lease
from memcore.session.read import SessionReader as SessionReader
from memcore.session.session import Session as Session
from memcore.session.state import SessionState as SessionState

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
