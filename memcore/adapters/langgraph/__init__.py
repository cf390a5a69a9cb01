"""memcore behind LangGraph's interfaces: ``pip install "memcore[langgraph]"``.

The names are imported when they are first used: whoever wants the store loads no checkpointer.
"""

from typing import TYPE_CHECKING

from memcore.adapters import on_first_use

if TYPE_CHECKING:
    from memcore.adapters.langgraph.cache import MemcoreCache
    from memcore.adapters.langgraph.saver import AsyncMemcoreSaver, MemcoreSaver
    from memcore.adapters.langgraph.store import AsyncMemcoreStore, MemcoreStore

__all__ = [
    "AsyncMemcoreSaver",
    "AsyncMemcoreStore",
    "MemcoreCache",
    "MemcoreSaver",
    "MemcoreStore",
]


_HOMES = {
    "AsyncMemcoreSaver": "saver",
    "AsyncMemcoreStore": "store",
    "MemcoreSaver": "saver",
    "MemcoreCache": "cache",
    "MemcoreStore": "store",
}
if not TYPE_CHECKING:  # for a type checker there are the names above, and no others
    __getattr__, __dir__ = on_first_use(
        __name__,
        _HOMES,
        needs="LangGraph",
        extra="langgraph",
        imports=("langgraph", "langchain_core"),
    )
