"""A part of ADK as the row of an artifact and its content, and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.adk.artifacts import artifact_util
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore.adapters.adk.newer import read_known
from memcore.codec import check_json, encode_json
from memcore.errors import CorruptValueError

__all__ = ["KINDS", "Encoded", "checked_part", "decode_part", "encode_part", "json_metadata"]

_INLINE_BYTES_MAX: Final = 256
"""A smaller content stays in the row: its blob's rows would be as large."""
_REST_BYTES_MAX: Final = 8 * 1024
"""What a row holds of a part beside its content; of more all is content."""
KINDS: Final = ("data", "text", "part", None)
"""What the content of a part is: its data, its text, all of it, or nothing."""
_TOMBSTONE: Final = types.Part(
    inline_data=types.Blob(mime_type="application/octet-stream", data=b"")
)


class Encoded(NamedTuple):
    """A part as it is stored."""

    row: dict[str, Any]
    """``part``: JSON of all but the content. ``kind``: what the content is. ``content``: a small
    one. ``mime``: the artifact's."""
    content: bytes | None


def checked_part(
    part: object, *, app_name: str, user_id: str, session_id: str | None
) -> types.Part:
    """The part if it can be stored.

    Raises:
        InputValidationError: it holds no data, text or file, or a reference that leaves the scope.
    """
    if not isinstance(part, types.Part):
        msg = f"Not supported artifact type: expected a Part or a dict, got {type(part).__name__}."
        raise InputValidationError(msg)
    if part.inline_data is None and part.text is None:
        if part.file_data is None:
            msg = "Not supported artifact type: expected inline_data, text or file_data."
            raise InputValidationError(msg)
        if artifact_util.is_artifact_ref(part):
            uri = part.file_data.file_uri or ""
            parsed = artifact_util.parse_artifact_uri(uri)
            if parsed is None:
                msg = f"Invalid artifact reference URI: {uri}"
                raise InputValidationError(msg)
            artifact_util.validate_artifact_reference_scope(
                app_name=app_name, user_id=user_id, session_id=session_id, parsed_uri=parsed
            )
    return part


def encode_part(part: types.Part) -> Encoded:
    """The row and the content of a part.

    Raises:
        InputValidationError: a field holds what is no JSON.
    """
    kind, content = _content(part)
    beside: dict[str, Any] = {"text": True} if kind == "text" else {"inline_data": {"data"}}
    try:
        rest = part.model_dump(mode="json", exclude_none=True, exclude=beside if kind else None)
        json.dumps(rest, ensure_ascii=False).encode()  # half a surrogate pair could not be read
        if kind is None or len(encode_json(rest)[0]) > _REST_BYTES_MAX:
            kind, content, rest = "part", part.model_dump_json(exclude_none=True).encode(), {}
    except (PydanticSerializationError, TypeError, ValueError) as error:
        msg = f"Not supported artifact type: a field of the part is no JSON: {error}"
        raise InputValidationError(msg) from error
    row: dict[str, Any] = {"part": rest, "kind": kind, "mime": _mime_type(part)}
    if content is not None and len(content) <= _INLINE_BYTES_MAX:
        row["content"] = b64encode(content).decode()
        content = None
    return Encoded(row, content)


def _content(part: types.Part) -> tuple[str | None, bytes | None]:
    if part.inline_data is not None and part.inline_data.data is not None:
        return "data", part.inline_data.data
    if part.text is not None:
        return "text", part.text.encode("utf-8", "surrogatepass")
    return None, None


def _mime_type(part: types.Part) -> str | None:
    if part.inline_data is not None:
        return part.inline_data.mime_type
    if part.text is not None:
        return "text/plain"
    if part.file_data is not None and not artifact_util.is_artifact_ref(part):
        return part.file_data.mime_type
    return None  # it is its target's


def decode_part(row: Mapping[str, Any], content: bytes | None) -> types.Part | None:
    """The part that ``encode_part`` wrote; None for what a rewind leaves of a new artifact.

    Raises:
        CorruptValueError: the row or the content is missing something.
    """
    try:
        payload = b64decode(row["content"]) if content is None else content
        if row["kind"] == "part":
            part = read_known(types.Part.model_validate, json.loads(payload), "an artifact")
        else:
            part = read_known(types.Part.model_validate, row["part"], "an artifact")
            if row["kind"] == "text":
                part.text = payload.decode("utf-8", "surrogatepass")
            elif part.inline_data is not None:
                part.inline_data.data = payload
    except (LookupError, ValueError, TypeError) as error:
        msg = f"the artifact under {row.get('name')!r} cannot be decoded: {error}; run check"
        raise CorruptValueError(msg, key=b"") from error
    return None if part == _TOMBSTONE else part


def json_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Custom metadata as JSON, which is what is read back.

    Raises:
        InputValidationError: it is no mapping, or holds what is no JSON.
    """
    if metadata is None:
        return {}
    try:
        found = to_jsonable_python(dict(metadata))
        check_json(found)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"custom_metadata must be JSON: {error}"
        raise InputValidationError(msg) from error
    return dict(found)
