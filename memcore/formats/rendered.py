"""What rendering makes: messages, where they come from, and what was repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memcore.formats.binding import Entry
from memcore.model import Message, Repair

__all__ = ["Rendered"]


@dataclass(slots=True)
class Rendered:
    """Messages in order; ``sources[i]`` is the entry that message i is, or None if it is new."""

    messages: list[Message] = field(default_factory=list)
    sources: list[int | None] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)

    def keep(self, entries: Sequence[Entry], at: int) -> None:
        """Show an entry as it is."""
        self.messages.append(entries[at].message)
        self.sources.append(at)

    def write(self, message: Message) -> None:
        """Show a message that no entry holds in this form."""
        self.messages.append(message)
        self.sources.append(None)
