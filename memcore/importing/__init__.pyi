# Written by scripts/make_faces from __init__.py.
from memcore.importing.loader import ImportReport as ImportReport
from memcore.importing.loader import checked_conflict as checked_conflict
from memcore.importing.loader import load as load
from memcore.importing.readers import KINDS as KINDS
from memcore.importing.readers import Reading as Reading
from memcore.importing.readers import read as read
from memcore.importing.source import SourceBranch as SourceBranch
from memcore.importing.source import SourceConversation as SourceConversation
from memcore.importing.source import SourceFailure as SourceFailure
from memcore.importing.source import SourceItem as SourceItem
from memcore.importing.source import SourceMemory as SourceMemory
from memcore.importing.source import SourceState as SourceState
from memcore.importing.source import SourceSummary as SourceSummary
from memcore.importing.source import SourceThread as SourceThread

__all__ = [
    "KINDS",
    "ImportReport",
    "Reading",
    "SourceBranch",
    "SourceConversation",
    "SourceFailure",
    "SourceItem",
    "SourceMemory",
    "SourceState",
    "SourceSummary",
    "SourceThread",
    "checked_conflict",
    "load",
    "read",
]
