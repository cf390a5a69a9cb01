"""Where the retrieval data is, which is not part of the project: MEMCORE_EVAL, or beside it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = [
    "KIT",
]

KIT = Path(
    os.environ.get("MEMCORE_EVAL") or Path(__file__).parents[2] / "shared" / "eval" / "memory"
)
