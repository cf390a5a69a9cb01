"""Operations of a store at the border of the file."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from langgraph.store.base import Op, PutOp, SearchOp

from memcore.codec import plain_json
from memcore.privacy.border import Passage

__all__ = ["admitted_op"]


def admitted_op(passage: Passage, op: Op, name: str) -> Op:
    """An operation as it may be stored, or as it finds what was stored.

    Placeholders are the same for the same value, so a filter for a value that was redacted still
    finds it. Namespaces and keys stay.

    Raises:
        BlockedError: a guard refuses what is put, or something is found in its namespace or key.
    """
    if isinstance(op, PutOp):
        if op.value is None:
            passage.judge(None, "kv", name=name)
            return op
        for label in op.namespace:
            passage.name(label, "namespace of an entry")
        passage.name(op.key, "key of an entry")
        return op._replace(value=_admitted(passage, op.value, name))
    if isinstance(op, SearchOp) and op.filter:
        with suppress(TypeError, ValueError, RecursionError):  # told where the filter is checked
            return op._replace(filter=passage.again(plain_json(op.filter)))
    return op


def _admitted(passage: Passage, value: Any, name: str) -> Any:
    try:
        plain = plain_json(dict(value))
    except (TypeError, ValueError, RecursionError):
        return value  # whoever makes a row of it refuses it, and says why
    return passage.value(plain, "kv", name=name)
