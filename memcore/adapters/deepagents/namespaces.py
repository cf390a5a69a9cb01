"""Which namespace of files a call is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from langgraph.runtime import get_runtime

from memcore.errors import InvalidOptionError

__all__ = ["Namespace", "named"]

Namespace: TypeAlias = str | tuple[str, ...] | Callable[[Any], str | tuple[str, ...]]
"""A name, a tuple of them, or a function of the LangGraph runtime that gives either."""

_LEGAL: Final = re.compile(r"[A-Za-z0-9\-_.@+:~]+", re.ASCII)
_PREFIX: Final = "deepagents:"


def named(namespace: Namespace) -> str:
    """The key/value namespace for a call that is being made.

    Raises:
        InvalidOptionError: it is empty, no strings, or holds characters that StoreBackend refuses.
        RuntimeError: the function reads the runtime, and this is outside a graph.
    """
    given: Any = _called(namespace) if callable(namespace) else namespace
    parts = (given,) if isinstance(given, str) else given
    if not isinstance(parts, tuple) or not parts:
        msg = f"namespace: expected a str or a tuple of them that is not empty, got {given!r:.100}"
        raise InvalidOptionError(msg)
    for part in parts:
        if not isinstance(part, str) or not _LEGAL.fullmatch(part):
            msg = (
                f"namespace: expected letters, digits and - _ . @ + : ~ in each part, got "
                f"{part!r:.100}"
            )
            raise InvalidOptionError(msg)
    return _PREFIX + "/".join(parts)


def _called(namespace: Callable[[Any], Any]) -> Any:
    try:
        runtime: Any = get_runtime()
    except (RuntimeError, KeyError):
        runtime = None
    try:
        return namespace(runtime)
    except AttributeError as error:
        if runtime is not None:
            raise
        msg = (
            "the namespace function reads the runtime, which there is only inside a LangGraph "
            "graph: call the backend from an agent, or give a namespace that needs none"
        )
        raise RuntimeError(msg) from error
