"""Anthropic's memory tool over memcore: ``pip install "memcore-db[anthropic]"``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"memory": "AsyncMemcoreMemoryTool MemcoreMemoryTool"},
    extra=("the Anthropic SDK", "anthropic", ("anthropic",)),
)
