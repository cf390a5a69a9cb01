"""Commits of rows with large contents, which are staged in short commits and then referenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from google.genai import types
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from memcore.aio.commit import settled
from memcore.blobs import BlobRef, StagedBlobLost
from memcore.errors import MemcoreError, StoreLockedError
from memcore.kv import KeyValue, KeyValueTxn
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.privacy.write_filter import ScopeFilter

__all__ = [
    "Content",
    "admitted_content",
    "admitted_metadata",
    "admitted_part",
    "commit_with",
    "in_thread",
]


# --- Commits of rows with contents: large ones are staged first, in a thread and in short commits -

T = TypeVar("T")
Content: TypeAlias = bytes | BlobRef | None
_ATTEMPTS: Final = 8


def in_thread(fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Run ``fn`` in a thread; return a future of its result."""
    return asyncio.ensure_future(asyncio.to_thread(fn, *args))


async def commit_with(
    kv: KeyValue,
    contents: Sequence[bytes | None],
    closure_of: Callable[[Sequence[Content]], Callable[[KeyValueTxn], T]],
    *,
    large: bool = False,
    is_choosy: bool = False,
    once_by: tuple[str, bytes] | None = None,
) -> T:
    """Run the closure for these contents in one commit; return its result.

    Args:
        kv: the namespace that the closure writes to.
        contents: those up to 192 KiB are written by the closure, larger ones are staged.
        closure_of: makes the closure from the contents, which the closure must put as given, before
            anything else.
        large: the closure computes for more than a millisecond.
        is_choosy: the closure may leave out contents.
        once_by: an idempotency key and its content: the closure runs only once for them.

    Raises:
        StoreLockedError: staged contents were repeatedly garbage-collected.
    """
    for _ in range(_ATTEMPTS):
        held: list[Content] = []
        try:
            for content in contents:
                is_large = content is not None and len(content) > BLOB_INLINE_COMMIT_BYTES_MAX
                held.append(await _staged(kv, content) if is_large else content)
            loop = asyncio.get_running_loop()
            future = kv.submit(closure_of(held), loop, large=large, once_by=once_by)
            result = await settled(future)
        except StagedBlobLost:
            continue  # collected, or freed with its last entry, before the commit
        except BaseException:
            await _unstaged(kv, held)
            raise
        if is_choosy:
            with suppress(MemcoreError):  # the commit has succeeded anyway
                await _unstaged(kv, held)
        return result
    msg = f"a staged content was collected {_ATTEMPTS} times before it was put: try again"
    raise StoreLockedError(msg)


async def _unstaged(kv: KeyValue, held: Sequence[Content]) -> None:
    """Remove staged contents that no entry references."""
    for each in held:
        if isinstance(each, BlobRef):
            await settled(in_thread(kv.unstage, each))


async def _staged(kv: KeyValue, content: bytes | None) -> BlobRef:
    staging = in_thread(kv.stage, content or b"")
    try:
        return await settled(staging)
    except asyncio.CancelledError:
        if not staging.cancelled() and staging.exception() is None:
            await settled(in_thread(kv.unstage, staging.result()))
        raise


# --- Content filter of parts and memories ---------------------------------------------------------

M = TypeVar("M", bound=BaseModel)


def admitted_part(scope_filter: ScopeFilter, part: types.Part) -> types.Part:
    """Filter a part before it is stored; the given part is not changed.

    Raises:
        BlockedError: a guard refuses it.
    """
    part = _admitted(scope_filter, part, "artifact", exclude={"inline_data": {"data"}})
    inline = part.inline_data
    if inline is None or not inline.data:
        return part
    data = scope_filter.bytes(inline.data, "artifact")
    if data is inline.data:
        return part
    return part.model_copy(update={"inline_data": inline.model_copy(update={"data": data})})


def admitted_content(scope_filter: ScopeFilter, content: types.Content) -> types.Content:
    """Filter the content of a memory before it is stored; raises what ``admitted_part`` does.

    Its inline data are not changed.
    """
    return _admitted(scope_filter, content, "memory")


def admitted_metadata(scope_filter: ScopeFilter, metadata: Mapping[str, Any] | None) -> Any:
    """Filter metadata before they are stored; non-JSON metadata are refused later, on encoding."""
    if not metadata:
        return metadata
    with suppress(PydanticSerializationError, TypeError, ValueError, RecursionError):
        return scope_filter.value(to_jsonable_python(dict(metadata)), "memory")
    return metadata


def _admitted(scope_filter: ScopeFilter, model: M, kind: str, exclude: Any = None) -> M:
    dumped = model.model_dump(mode="json", exclude_none=True, exclude=exclude)
    made = scope_filter.value(dumped, kind)
    if made is dumped:
        return model
    if exclude is None:
        return type(model).model_validate(made)
    found = type(model).model_validate(_without(made, exclude))
    kept = {name: getattr(model, name) for name in exclude if getattr(model, name) is not None}
    return found.model_copy(update=kept)


def _without(made: dict[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name not in names}
