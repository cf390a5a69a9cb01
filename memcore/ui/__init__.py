"""Inspector of a memcore file in a browser: ``pip install "memcore-db[ui]"``, ``memcore ui FILE``.

Names are imported on first use.
"""

from memcore.faces import face

__all__, __getattr__, __dir__ = face(
    __name__,
    {"pages": "Inspector", "server": "make_app serve"},
    extra=("the inspector", "ui", ("starlette", "uvicorn", "jinja2")),
)
