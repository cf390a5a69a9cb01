"""Whole files on their way in: many in one commit, redacted where the scope redacts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from deepagents.backends.protocol import FileUploadResponse

from memcore.adapters.deepagents.files import Files, Upload
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    OptedOutError,
    ReadOnlyError,
    StorageError,
)
from memcore.privacy.border import Passage

__all__ = ["REFUSED", "put_all"]

REFUSED: Final = (
    BlockedError, InvalidItemError, OptedOutError, ReadOnlyError, StorageError, UnicodeEncodeError,
)  # fmt: skip
"""What a model is told, as DeepAgents does; all else is a mistake of the program, and raised."""
_UPLOAD_BYTES: Final = 4 * 1024**2
"""Files of one upload share a commit up to this size."""


def put_all(
    files: Files, passage: Passage | None, uploads: Sequence[Upload]
) -> list[FileUploadResponse]:
    """Store whole files; what became of each."""
    responses: list[FileUploadResponse] = []
    at = 0
    if passage is not None:
        uploads = [_admitted(passage, upload) for upload in uploads]
    while at < len(uploads):
        stop, size = at + 1, len(uploads[at].payload)
        while stop < len(uploads) and size + len(uploads[stop].payload) <= _UPLOAD_BYTES:
            size += len(uploads[stop].payload)
            stop += 1
        batch, error = uploads[at:stop], None
        try:
            times = Counter(one.path for one in batch)
            # What comes twice is written in the order in which it comes.
            whole = [
                one
                for one in batch
                if one.modified_at or times[one.path] > 1 or not files.grown(one)
            ]
            if whole:
                files.put(whole)
        except REFUSED as refused:
            error = "permission_denied" if isinstance(refused, ReadOnlyError) else str(refused)
        responses += [FileUploadResponse(path=one.path, error=error) for one in batch]
        at = stop
    return responses


def _admitted(passage: Passage, upload: Upload) -> Upload:
    """A whole content as it may be stored."""
    passage.name(upload.path, "path of a file")
    payload = passage.bytes(upload.payload, "file")
    return upload if payload is upload.payload else replace(upload, payload=payload)
