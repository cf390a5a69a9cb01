"""The public names, as a type checker sees them: each ``ignore`` here has to be needed."""

import os
from pathlib import Path

import memcore
import memcore.telemetry
from memcore.adapters import adk, langgraph, openai_agents


def opened(path: Path, url: bytes, entry: os.DirEntry[str]) -> memcore.Session:
    """All that may be a path."""
    memcore.open(url).close()
    memcore.open(entry).close()
    return memcore.open(path).session("s")


def unknown_names() -> None:
    """What there is not."""
    memcore.nope  # type: ignore[attr-defined]  # noqa: B018
    memcore.opne("x")  # type: ignore[attr-defined]
    memcore.aio.nope  # type: ignore[attr-defined]  # noqa: B018


def unknown_names_of_packages() -> None:
    """Nor in the packages whose names are imported at their first use."""
    memcore.telemetry.nope  # type: ignore[attr-defined]  # noqa: B018
    adk.nope  # type: ignore[attr-defined]  # noqa: B018
    langgraph.nope  # type: ignore[attr-defined]  # noqa: B018
    openai_agents.nope  # type: ignore[attr-defined]  # noqa: B018
