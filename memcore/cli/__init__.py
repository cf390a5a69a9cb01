"""Command line; only ``main`` is public, and click and rich are loaded when a verb runs."""

from memcore.cli.entry import main

__all__ = [
    "main",
]
