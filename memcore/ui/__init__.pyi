# Written by scripts/make_faces from __init__.py.
from memcore.ui.pages import Inspector as Inspector
from memcore.ui.server import make_app as make_app
from memcore.ui.server import serve as serve

__all__ = [
    "Inspector",
    "make_app",
    "serve",
]
