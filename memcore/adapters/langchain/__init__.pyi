# Written by scripts/make_faces from __init__.py.
from memcore.adapters.langchain.middleware import ContextMiddleware as ContextMiddleware
from memcore.adapters.langchain.middleware import PayloadMiddleware as PayloadMiddleware
from memcore.adapters.langchain.middleware import SummaryMiddleware as SummaryMiddleware

__all__ = [
    "ContextMiddleware",
    "PayloadMiddleware",
    "SummaryMiddleware",
]
