"""Command line. Only ``main`` is public; typer and rich are loaded when a verb runs."""

from memcore.cli.entry import main

__all__ = [
    "main",
]
