# Written by scripts/make_faces from __init__.py.
from memcore.adapters.langchain.middleware import PayloadMiddleware as PayloadMiddleware

__all__ = [
    "PayloadMiddleware",
]
