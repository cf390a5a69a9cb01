"""Parts and memories at the border of the file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from google.genai import types
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore.privacy.border import Passage

__all__ = ["admitted_content", "admitted_metadata", "admitted_part"]

M = TypeVar("M", bound=BaseModel)


def admitted_part(passage: Passage, part: types.Part) -> types.Part:
    """A part as it may be stored; what was given is not changed.

    Raises:
        BlockedError: a guard refuses it.
    """
    part = _admitted(passage, part, "artifact", exclude={"inline_data": {"data"}})
    inline = part.inline_data
    if inline is None or not inline.data:
        return part
    data = passage.bytes(inline.data, "artifact")
    if data is inline.data:
        return part
    return part.model_copy(update={"inline_data": inline.model_copy(update={"data": data})})


def admitted_content(passage: Passage, content: types.Content) -> types.Content:
    """The content of a memory as it may be stored, and found; raises what ``admitted_part`` does.

    Inline data of it are left as they are.
    """
    return _admitted(passage, content, "memory")


def admitted_metadata(passage: Passage, metadata: Mapping[str, Any] | None) -> Any:
    """Metadata as they may be stored; what is no JSON is refused where it is encoded."""
    if not metadata:
        return metadata
    with suppress(PydanticSerializationError, TypeError, ValueError, RecursionError):
        return passage.value(to_jsonable_python(dict(metadata)), "memory")
    return metadata


def _admitted(passage: Passage, model: M, kind: str, exclude: Any = None) -> M:
    dumped = model.model_dump(mode="json", exclude_none=True, exclude=exclude)
    made = passage.value(dumped, kind)
    if made is dumped:
        return model
    if exclude is None:
        return type(model).model_validate(made)
    found = type(model).model_validate(_without(made, exclude))
    kept = {name: getattr(model, name) for name in exclude if getattr(model, name) is not None}
    return found.model_copy(update=kept)


def _without(made: dict[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name not in names}
