"""LangGraph: a checkpointer, a store and a cache over one memcore file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from memcore.adapters.langgraph.saver import AsyncMemcoreSaver, MemcoreSaver

__all__ = ["AsyncMemcoreSaver", "MemcoreSaver"]

_MODULES: Final = {"AsyncMemcoreSaver": "saver", "MemcoreSaver": "saver"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
