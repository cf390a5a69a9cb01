# Written by scripts/make_faces from __init__.py.
from memcore.blobs.rows import BlobRef as BlobRef
from memcore.blobs.rows import STAGING as STAGING
from memcore.blobs.rows import StagedBlobLost as StagedBlobLost
from memcore.blobs.rows import acquire as acquire
from memcore.blobs.rows import discard as discard
from memcore.blobs.rows import exists as exists
from memcore.blobs.rows import finish_leaving as finish_leaving
from memcore.blobs.rows import header_of as header_of
from memcore.blobs.rows import let_go as let_go
from memcore.blobs.rows import pages_of as pages_of
from memcore.blobs.rows import read as read
from memcore.blobs.rows import references as references
from memcore.blobs.rows import release as release
from memcore.blobs.rows import removal_of as removal_of
from memcore.blobs.rows import slot_of as slot_of
from memcore.blobs.rows import stream as stream
from memcore.blobs.rows import write as write
from memcore.blobs.store import BlobStore as BlobStore
from memcore.blobs.store import check as check
from memcore.blobs.store import collect as collect
from memcore.blobs.store import refer as refer
from memcore.blobs.store import stage as stage
from memcore.blobs.store import unstage as unstage

__all__ = [
    "STAGING",
    "BlobRef",
    "BlobStore",
    "StagedBlobLost",
    "acquire",
    "check",
    "collect",
    "discard",
    "exists",
    "finish_leaving",
    "header_of",
    "let_go",
    "pages_of",
    "read",
    "refer",
    "references",
    "release",
    "removal_of",
    "slot_of",
    "stage",
    "stream",
    "unstage",
    "write",
]
