"""Readers by kind: what ``read`` accepts, and the records that each yields."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from importlib import import_module
from typing import Final, NamedTuple

from memcore.errors import NotFoundError
from memcore.importing.source import Notes, Owner, Record
from memcore.options import checked_choice, checked_path, checked_several
from memcore.records import record
from memcore.rows.names import check_name

__all__ = [
    "KINDS",
    "ReaderKind",
    "Reading",
    "read",
]


class ReaderKind(NamedTuple):
    """A kind of source."""

    reader: str
    """Module and function."""
    holds: str
    """Description for messages and help."""


KINDS: Final[Mapping[str, ReaderKind]] = {
    "adk": ReaderKind("sqlite.read_adk", "SQLite of ADK's SqliteSessionService, or v1 of ADK's "
                      "DatabaseSessionService"),
    "chatgpt": ReaderKind("exports.read_chatgpt", "conversations.json of a ChatGPT export, or its "
                          "zip"),
    "claude-code": ReaderKind("transcripts.read_claude_code", "a transcript (.jsonl) of Claude "
                              "Code, or a directory of them"),
    "codex": ReaderKind("transcripts.read_codex", "a rollout (.jsonl, .jsonl.zst) of Codex, or a "
                        "directory of them"),
    "json": ReaderKind("exports.read_json", "conversations in a JSON array, or one a line"),
    "langchain-sql": ReaderKind("sqlite.read_langchain", "SQLite of SQLChatMessageHistory"),
    "langgraph": ReaderKind("graphs.read_sqlite", "SQLite of LangGraph's SqliteSaver"),
    "langgraph-pg": ReaderKind("graphs.read_postgres", "PostgreSQL of LangGraph's PostgresSaver, "
                               "by its connection string"),
    "mem0": ReaderKind("sqlite.read_mem0", "history.db of mem0, or the JSON of get_all()"),
    "openai-agents": ReaderKind("sqlite.read_openai_agents", "SQLite of SQLiteSession or "
                                "AdvancedSQLiteSession of OpenAI's Agents SDK"),
    "sharegpt": ReaderKind("exports.read_sharegpt", "conversations in ShareGPT's form, JSON or "
                           "one a line"),
}  # fmt: skip
"""Kinds of sources, by name."""

Reader = Callable[[str, Owner, Notes], Iterator[Record]]


@record(slots=True)
class Reading:
    """The records of a source, read as they are iterated over, once."""

    kind: str
    path: str
    owner: Owner
    notes: Notes = field(default_factory=Notes)
    """Counts of mended and left out parts so far."""

    def check(self) -> None:
        """Check that the source exists, where it is a file or a directory.

        Raises:
            NotFoundError: it does not.
        """
        if self.kind != "langgraph-pg" and not os.path.exists(self.path):
            msg = f"{self.path}: no such file or directory"
            raise NotFoundError(msg)

    def __iter__(self) -> Iterator[Record]:
        """Read the source.

        Raises:
            SourceError: it is missing, of another kind or version, locked or damaged.
        """
        home, name = KINDS[self.kind].reader.split(".")
        reader: Reader = getattr(import_module(f"memcore.importing.{home}"), name)
        return reader(self.path, self.owner, self.notes)


def read(
    kind: str,
    path: str | os.PathLike[str],
    *,
    app: str = "default",
    user: str = "default",
    allowed_types: Iterable[tuple[str, str]] = (),
) -> Reading:
    """Return a reader of a foreign store's conversations; nothing is read before it is iterated.

    Args:
        kind: one of ``KINDS``.
        path: a file; for some kinds a directory, or a connection string.
        app: the application of what has none in the source.
        user: the user of what has none in the source.
        allowed_types: module and name of types that checkpoints of a graph may hold in addition
            to safe ones: building them runs their code.

    Raises:
        InvalidOptionError: the kind is unknown, or a name is invalid.
    """
    checked_choice("kind", kind, KINDS)
    file = checked_path("path", path)
    pairs = checked_several("allowed_types", allowed_types, "pairs of a module and a name")
    for what, name in (("app", app), ("user", user)):
        check_name(name, what)
    return Reading(kind, file, Owner(app, user, tuple(pairs)))
