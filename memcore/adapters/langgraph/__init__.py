"""memcore behind LangGraph's interfaces: ``pip install "memcore[langgraph]"``.

The names are imported when they are first used: whoever wants the store loads no checkpointer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcore.adapters.langgraph.cache import MemcoreCache
    from memcore.adapters.langgraph.saver import AsyncMemcoreSaver, MemcoreSaver
    from memcore.adapters.langgraph.store import MemcoreStore

__all__ = ["AsyncMemcoreSaver", "MemcoreCache", "MemcoreSaver", "MemcoreStore"]

_HOMES = {
    "AsyncMemcoreSaver": "memcore.adapters.langgraph.saver",
    "MemcoreSaver": "memcore.adapters.langgraph.saver",
    "MemcoreCache": "memcore.adapters.langgraph.cache",
    "MemcoreStore": "memcore.adapters.langgraph.store",
}
_FRAMEWORK = ("langgraph", "langchain_core")


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        msg = f"module 'memcore.adapters.langgraph' has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _FRAMEWORK:
            raise
        msg = f'{name} needs LangGraph: install it with pip install "memcore[langgraph]" ({exc})'
        raise ImportError(msg, name=exc.name) from exc
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
