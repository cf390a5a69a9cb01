"""Transcripts of coding agents: sessions of Claude Code, and rollouts of Codex.

A transcript of Claude Code is a graph: each line names the one before it. A rewind makes a second
line after one, which becomes a fork; parallel results hang on several parents; after a compaction
the line that begins anew names the one that it logically follows. Lines of a kind that this module
does not know are counted by name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

from memcore.errors import SourceError
from memcore.importing.source import (
    ItemTree,
    Notes,
    Owner,
    Record,
    SourceBranch,
    SourceConversation,
    SourceFailure,
    SourceItem,
    SourceSummary,
    branch_name,
    checked_message,
    json_of,
    micros_of,
    name_of_file,
    refuse_source,
)
from memcore.records import record

__all__ = [
    "read_claude_code",
    "read_codex",
]


# --- Files of lines -------------------------------------------------------------------------------

_LINE_BYTES_MAX: Final = 256 * 1024**2
"""Longest line that is read: a compressed file may hold any number of equal bytes."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def files_of(path: str, endings: tuple[str, ...]) -> list[str]:
    """Return the files at a path with one of the endings; that path itself if it is a file.

    Raises:
        SourceError: it is missing, or a directory without any.
    """
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        refuse_source(path, "no such file or directory")
    every = (str(each) for each in Path(path).rglob("*") if each.is_file())
    found = sorted(each for each in every if each.endswith(endings))
    if not found:
        refuse_source(path, f"holds no file that ends in {' or '.join(endings)}")
    return found


def lines_of(path: str, notes: Notes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line of a file; those that are no JSON are counted.

    Raises:
        SourceError: the file cannot be read, is truncated, is compressed by an unknown program, or
            has lines and none of them is JSON.
    """
    wrong, is_any = 0, False
    try:
        with open(path, "rb") as file, _plain(path, file) as plain:
            number = 0
            while line := plain.readline(_LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > _LINE_BYTES_MAX:
                    refuse_source(f"{path}:{number}", f"is longer than {_LINE_BYTES_MAX:,} bytes")
                if not line.strip():
                    continue
                try:
                    value = json_of(line, f"{path}:{number}")
                except SourceError:
                    wrong += 1
                    is_last = not line.endswith(b"\n")
                    what = "lines cut off at the end of a file" if is_last else "lines without JSON"
                    notes.skip(what, place=f"{path}:{number}")
                else:
                    is_any = True
                    yield number, value
    except OSError as exc:
        refuse_source(path, exc.strerror or str(exc), exc)
    if wrong and not is_any:
        refuse_source(path, "none of its lines is JSON")


def _plain(path: str, file: BinaryIO) -> Any:
    """Return a file's content, decompressed if need be.

    Raises:
        SourceError: decompressing needs a package that is not installed.
    """
    head = file.read(4)
    file.seek(0)
    if head != _ZSTD_MAGIC:
        return closing(file)
    try:
        zstd = import_module("compression.zstd")
        begin = zstd.ZstdDecompressor
    except ModuleNotFoundError:
        try:
            zstd = import_module("zstandard")
        except ModuleNotFoundError as exc:
            msg = f'{path} is compressed with zstd: pip install "memcore-db[zstd]"'
            raise ImportError(msg, name=exc.name) from exc
        begin = zstd.ZstdDecompressor().decompressobj
    return io.BufferedReader(_Decompressed(path, file, begin, zstd.ZstdError))


_PIECE: Final = 1024
"""Bytes that are decompressed at a time; they may become some megabytes."""


class _Decompressed(io.RawIOBase):
    """Decompressed content of a file, of one frame or several."""

    def __init__(
        self, path: str, file: BinaryIO, begin: Callable[[], Any], error: type[Exception]
    ) -> None:
        super().__init__()
        self._path = path
        self._file = file
        self._begin = begin
        self._error = error
        self._frame: Any = None
        self._plain = b""
        self._at = 0
        """Bytes of these that were handed out."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer.

        Raises:
            SourceError: the compressed content is damaged or ends early.
        """
        while self._at >= len(self._plain):
            piece = self._file.read(_PIECE)
            if not piece:
                if self._frame is not None:
                    refuse_source(self._path, "is cut off: its compressed content ends early")
                return 0
            self._plain, self._at = b"".join(self._frames(piece)), 0
        count = min(len(buffer), len(self._plain) - self._at)
        buffer[:count] = self._plain[self._at : self._at + count]
        self._at += count
        return count

    def _frames(self, piece: bytes) -> Iterator[bytes]:
        try:
            while piece:
                if self._frame is None:
                    self._frame = self._begin()
                yield self._frame.decompress(piece)
                piece = b""
                if self._frame.eof:
                    piece, self._frame = self._frame.unused_data, None
        except (self._error, EOFError) as exc:
            refuse_source(self._path, f"its compression is damaged ({exc})", exc)


# --- Claude Code ----------------------------------------------------------------------------------

_LINKED: Final = frozenset(("user", "assistant", "progress", "system", "attachment"))
"""Types of lines that are part of the graph."""
_BESIDE: Final = frozenset(
    ("summary", "file-history-snapshot", "queue-operation", "custom-title", "last-prompt", "tag",
     "agent-name", "agent-setting", "mode", "ai-title", "pr-link", "permission-mode")
)  # fmt: skip
"""Types of lines about a session as a whole."""
_POLICY: Final = "anthropic"
_SIBLINGS_MAX: Final = 64
"""Lines behind one call that are looked at for the item that a result belongs to."""
_EVENT: Final = "claude_code"
"""Prefix of the types of events that keep what is no message."""
_META: Final = (
    "uuid", "parentUuid", "requestId", "isMeta", "isSidechain", "agentId", "teamName", "gitBranch",
    "cwd", "version", "userType",
)  # fmt: skip


def read_claude_code(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield each transcript, and each sidechain and subagent as a conversation of its own."""
    del owner
    for file in files_of(path, (".jsonl",)):
        lines = []
        try:
            for number, line in lines_of(file, notes):
                lines.append((number, line))
        except SourceError as error:
            yield SourceFailure(error.place, str(error).removeprefix(f"{error.place}: "))
            if not lines:
                continue
        yield from _transcript(file, path, lines, notes)


@record(slots=True)
class _TranscriptLine:
    """A line of the graph."""

    line: int
    body: dict[str, Any]
    parent: str | None = None
    children: list[str] = field(default_factory=list)
    is_end: bool = True
    """False if a line follows it, other than the first one behind a compaction."""

    @property
    def is_message(self) -> bool:
        """True if it is a message of the user or the model."""
        return self.body["type"] in ("user", "assistant")

    @property
    def is_main(self) -> bool:
        """True if it may end the conversation that the user sees."""
        body = self.body
        return not (body.get("isSidechain") or body.get("teamName") or body.get("isMeta"))


def _transcript(
    file: str, root: str, lines: list[tuple[int, Any]], notes: Notes
) -> Iterator[Record]:
    """Yield the conversations of one file: the main one, and a sidechain each."""
    entries, rest = _sorted(file, lines, notes)
    name = _name_of_transcript(file, root)
    side = {key for key, entry in entries.items() if entry.body.get("isSidechain")}
    main = {key: entry for key, entry in entries.items() if key not in side}
    if not main:  # a subagent's own file: all of it is a sidechain
        main, side = entries, set()
    if main or rest:
        yield _conversation(file, name, main, rest, notes)
    for at, chain in enumerate(_components(entries, side), 1):
        yield _conversation(file, f"{name}/sidechain-{at}", chain, [], notes)


def _sorted(
    file: str, lines: list[tuple[int, Any]], notes: Notes
) -> tuple[dict[str, _TranscriptLine], list[tuple[int, dict[str, Any]]]]:
    """Return the lines of the graph by uuid, and those about the session as a whole."""
    entries: dict[str, _TranscriptLine] = {}
    rest: list[tuple[int, dict[str, Any]]] = []
    for number, line in lines:
        kind = line.get("type") if isinstance(line, dict) else None
        if not isinstance(kind, str):
            notes.skip("lines that are no object with a type", place=f"{file}:{number}")
        elif kind in _LINKED:
            key = line.get("uuid")
            if not isinstance(key, str):
                key = f"line-{number}"
                notes.mend("lines without uuid")
            if key in entries and entries[key].body == line:
                notes.skip("lines that occur twice")
                continue
            if key in entries:
                notes.mend("different lines with one uuid")
            while key in entries:
                key = f"{key}#{number}"
            entries[key] = _TranscriptLine(number, line)
        else:
            if kind not in _BESIDE:
                notes.mend(f"lines of unknown type {kind[:40]!r}, kept as events")
            rest.append((number, line))
    _link(entries, notes)
    return entries, rest


def _link(entries: dict[str, _TranscriptLine], notes: Notes) -> None:
    """Give each entry its parent, which is always an earlier line."""
    has_parents = any(_parent_in(entry.body) in entries for entry in entries.values())
    seen: dict[str, int] = {}
    last: str | None = None
    for key, entry in entries.items():
        parent = _parent_in(entry.body)
        logical = entry.body.get("logicalParentUuid")
        is_compacted = parent is None and isinstance(logical, str)
        if is_compacted:
            parent = logical if logical in seen else last
        if parent is None and not has_parents:
            if last is not None:
                notes.mend("lines without a parent in a file without any, kept in its order")
            parent = last
        elif parent is not None and parent not in seen:
            notes.mend("lines whose parent is missing or comes later, kept behind the line before")
            parent = last
        entry.parent = parent
        if parent is not None:
            entries[parent].children.append(key)
            entries[parent].is_end &= is_compacted
        seen[key] = entry.line
        last = key


def _parent_in(body: Mapping[str, Any]) -> str | None:
    parent = body.get("parentUuid")
    return parent if isinstance(parent, str) else None


def _components(
    entries: Mapping[str, _TranscriptLine], side: set[str]
) -> Iterator[dict[str, _TranscriptLine]]:
    """Yield the sidechains: entries that hang together, without the main conversation."""
    roots: dict[str, str] = {}
    found: dict[str, dict[str, _TranscriptLine]] = {}
    for key in entries:
        if key not in side:
            continue
        parent = entries[key].parent
        agent = entries[key].body.get("agentId")
        root = roots.get(parent or "", f"agent {agent}" if isinstance(agent, str) else key)
        roots[key] = root
        found.setdefault(root, {})[key] = entries[key]
    yield from found.values()


def _name_of_transcript(file: str, root: str) -> str:
    """Return the name of a file's session: that of its path below the directory that is read."""
    name = name_of_file(file)
    if os.path.isdir(root):
        below = Path(file).relative_to(root)
        parts = [part for part in below.parts[:-1] if part != "subagents"]
        return "/".join((*parts, name))
    return name


def _conversation(
    file: str,
    name: str,
    entries: Mapping[str, _TranscriptLine],
    rest: list[tuple[int, dict[str, Any]]],
    notes: Notes,
) -> SourceConversation:
    """Return the conversation of some entries: the path to the newest leaf, and forks."""
    tree = ItemTree(f"{file}:{min((entry.line for entry in entries.values()), default=1)}")
    nodes = _Nodes(tree, entries, notes)
    for key in entries:
        nodes.place(key)
    leaf = nodes.leaf()
    found = SourceConversation(tree.place, name, _POLICY, tree.items)
    events = [_event(number, line) for number, line in rest]
    found.leaf = nodes.extend(leaf, events)
    found.summaries = nodes.summaries
    live = set(tree.path(found.leaf))
    for at, end in nodes.ends():
        if at not in live:
            found.branches.append(SourceBranch(branch_name(end, at), at))
    return found


def _event(number: int, line: dict[str, Any]) -> SourceItem:
    return SourceItem(
        checked_payload({"line": number, **line}),
        micros_of(line.get("timestamp")),
        event=f"{_EVENT}.{str(line.get('type'))[:80]}",
    )


def checked_payload(found: Any) -> Any:
    """Return the payload of an event: JSON that memcore stores, or its text."""
    return checked_message(found, Notes())


class _Nodes:
    """Items of a conversation's graph, made of its lines."""

    def __init__(
        self, tree: ItemTree, entries: Mapping[str, _TranscriptLine], notes: Notes
    ) -> None:
        self.tree = tree
        self.summaries: list[SourceSummary] = []
        self._entries = entries
        self._notes = notes
        self._at: dict[str, int] = {}
        """Index of the item that a line belongs to."""
        self._calls: dict[int, set[str]] = {}
        """Ids of the calls that an item makes; below, of those that it answers."""
        self._answers: dict[int, set[str]] = {}
        self._messages: dict[str, int] = {}
        """Index of the item that holds the blocks of a message of the model, by its id."""

    def place(self, key: str) -> None:
        """Add a line: to the item that it continues, or as an item of its own."""
        entry = self._entries[key]
        after = self._after(entry)
        body = entry.body
        message = body.get("message")
        if (
            not entry.is_message
            or not isinstance(message, dict)
            or not isinstance(message.get("content"), str | list)
        ):
            if entry.is_message:
                self._notes.mend("messages without content, kept as events")
            self._at[key] = self.tree.add(_event(entry.line, body), after)
            return
        if body.get("isCompactSummary"):
            if after >= 0:
                self.summaries.append(SourceSummary(after, _text_of(message)))
            self._at[key] = self.tree.add(_event(entry.line, body), after)
            return
        joined = self._join(key, entry, message, after)
        if not joined:
            self._at[key] = self.tree.add(self._item(entry, message), after)
            if "content" not in self.tree.items[self._at[key]].message:
                return  # kept as text
            self._note(self._at[key], message)
            if body["type"] == "assistant" and isinstance(message.get("id"), str):
                self._messages[message["id"]] = self._at[key]

    def _after(self, entry: _TranscriptLine) -> int:
        """Return the index of the item behind which a line belongs."""
        return -1 if entry.parent is None else self._at.get(entry.parent, -1)

    def _join(self, key: str, entry: _TranscriptLine, message: dict[str, Any], after: int) -> bool:
        """Add a line to the message that it is a part of, or whose parallel results it adds to."""
        body = entry.body
        if body["type"] == "assistant":
            name = message.get("id")
            at = self._messages.get(name) if isinstance(name, str) else None
            if at is None or not self._continues(at, after):
                return False
            if after != at:
                self._notes.mend("blocks of one message that others came between, joined")
        else:
            at = self._results(message, after)
            if at is None:
                return False
        held = self.tree.items[at]
        if checked_message(message, Notes()) is not message:  # its blocks are no JSON
            return False
        content = [*_blocks(held.message), *_blocks(message)]
        meta = held.meta or {}
        lines = [*meta.get("claude_code", {}).get("lines", []), _meta_of(body)]
        self.tree.items[at] = held._replace(
            message={**held.message, "content": content},
            meta={"claude_code": {**meta.get("claude_code", {}), "lines": lines}},
        )
        self._at[key] = at
        self._note(at, message)
        return True

    def _note(self, at: int, message: dict[str, Any]) -> None:
        """Note the calls that an item makes and answers by a message."""
        self._calls.setdefault(at, set()).update(_ids(message, "tool_use", "id"))
        self._answers.setdefault(at, set()).update(_ids(message, "tool_result", "tool_use_id"))

    def _continues(self, at: int, after: int) -> bool:
        """Return whether an item is the last or the one before it on the way to ``after``."""
        if after < 0 or after == at:
            return after == at
        above = self.tree.items[after].after
        return (after - 1 if above is None else above) == at and bool(self._answers.get(after))

    def _results(self, message: dict[str, Any], after: int) -> int | None:
        """Return the item of results that a line of results joins; None: it begins its own.

        Results of parallel calls name the call that each answers; the model sees them together.
        """
        called = _ids(message, "tool_result", "tool_use_id")
        if not called or after < 0:
            return None
        for at in (after, *self.tree.followers(after)[:_SIBLINGS_MAX]):
            held = self.tree.items[at]
            if held.event or held.message.get("role") != "user" or at <= 0:
                continue
            before = at - 1 if held.after is None else held.after
            asked, answered = self._calls.get(before, set()), self._answers.get(at)
            if answered and called <= asked and called.isdisjoint(answered):
                if at != after:
                    self._notes.mend("results of parallel calls, joined into one message")
                return at
        return None

    def _item(self, entry: _TranscriptLine, message: dict[str, Any]) -> SourceItem:
        body = entry.body
        shown = {name: value for name, value in message.items() if name in ("role", "content")}
        shown["role"] = body["type"]
        meta = {"claude_code": {**_meta_of(body), "line": entry.line}}
        more = {name: message[name] for name in ("id", "model", "usage") if name in message}
        if more:
            meta["claude_code"]["message"] = more
        return SourceItem(
            checked_message(shown, self._notes), micros_of(body.get("timestamp")), meta
        )

    def leaf(self) -> int:
        """Return the last item of the path to the last message that the user sees."""
        ends = [key for key, entry in self._entries.items() if entry.is_end]
        found = [leaf for key in ends if (leaf := self._message_above(key)) is not None]
        shown = [leaf for leaf in found if self._entries[leaf].is_main] or found
        if not shown:
            return len(self.tree.items) - 1
        leaf = max(shown, key=lambda key: self._entries[key].line)
        below = {leaf}
        for key, entry in self._entries.items():  # what goes on behind it: events, a compaction
            if entry.parent in below:
                below.add(key)
        # Of a damaged transcript, what has children may have none of them here.
        last = below - {self._entries[key].parent for key in below}
        return self._at[max(last, key=lambda key: self._entries[key].line)]

    def _message_above(self, key: str) -> str | None:
        """Return the nearest message at or before a line; parents are earlier lines."""
        at: str | None = key
        while at is not None and at in self._entries:
            if self._entries[at].is_message:
                return at
            at = self._entries[at].parent
        return None

    def ends(self) -> Iterator[tuple[int, str]]:
        """Yield the items that nothing follows, each with the uuid of its last line."""
        keys = {at: key for key, at in self._at.items()}
        for at in self.tree.leaves():
            if at in keys and any(not self.tree.items[each].event for each in self._own(at)):
                yield at, keys[at]

    def _own(self, leaf: int) -> Iterator[int]:
        """Yield the items from a leaf up to the last one that something else follows, too."""
        at = leaf
        while at >= 0:
            yield at
            after = self.tree.items[at].after
            above = at - 1 if after is None else after
            if above < 0 or len(self.tree.followers(above)) > 1:
                return
            at = above

    def extend(self, leaf: int, events: list[SourceItem]) -> int:
        """Add events behind a leaf; return the last one."""
        for event in events:
            leaf = self.tree.add(event, leaf)
        return leaf


def _meta_of(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _META if body.get(name) not in (None, False)}


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _ids(message: Any, kind: str, field: str) -> set[str]:
    return {
        block[field]
        for block in _blocks(message)
        if isinstance(block, dict)
        and block.get("type") == kind
        and isinstance(block.get(field), str)
    }


def _text_of(message: dict[str, Any]) -> str:
    texts = [block.get("text") for block in _blocks(message) if isinstance(block, dict)]
    return "\n\n".join(text for text in texts if isinstance(text, str))


# --- Codex ----------------------------------------------------------------------------------------

_KEPT: Final = ("session_meta", "compacted")
"""Types of lines that are kept as events."""
_REPEATS: Final = frozenset(
    ("event_msg", "turn_context", "world_state", "token_usage_record", "realtime_item",
     "inter_agent_communication", "inter_agent_communication_metadata", "retained_context",
     "security_risk_score")
)  # fmt: skip
"""Types of lines that repeat the history, or say what went on beside it."""
_INJECTED: Final = ("<", "# AGENTS.md")
"""Beginnings of user messages that Codex writes itself."""


def read_codex(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield each rollout."""
    del owner
    for file in files_of(path, (".jsonl", ".jsonl.zst")):
        rollout = _Rollout(file, notes)
        try:
            for number, line in lines_of(file, notes):
                rollout.take(number, line)
        except SourceError as error:
            yield SourceFailure(error.place, str(error).removeprefix(f"{error.place}: "))
            if not rollout.tree.items:
                continue
        if rollout.tree.items:
            yield rollout.conversation()
        elif rollout.is_foreign and file == path:
            yield SourceFailure(f"{file}:1", "no rollout of Codex: no line is one of it")


class _Rollout:
    """A rollout being read."""

    is_foreign = False
    """True if there were lines, and none was of a kind that Codex writes."""
    _knows = False

    def __init__(self, file: str, notes: Notes) -> None:
        self.tree = ItemTree(f"{file}:1")
        self._file = file
        self._notes = notes
        self._name = ""
        self._last = -1
        self._turns: list[int] = []
        """Items that begin a turn of the user, on the way to the last one."""
        self._summaries: list[SourceSummary] = []
        self._branches: list[int] = []

    def take(self, number: int, line: Any) -> None:
        """Take in one line."""
        self._take(number, line)
        self.is_foreign = not (self._knows or self._name or self.tree.items)

    def _take(self, number: int, line: Any) -> None:
        kind = line.get("type") if isinstance(line, dict) else None
        payload = line.get("payload") if isinstance(line, dict) else None
        if not isinstance(kind, str) or not isinstance(payload, dict):
            if isinstance(line, dict) and not self.tree.items and isinstance(line.get("id"), str):
                self._name = self._name or line["id"]  # rollouts before lines had types
                self._knows = self._knows or not line["id"]
                self._notes.skip("lines of a rollout's old form")
            else:
                self._notes.skip(
                    "lines that are no object with a type", place=f"{self._file}:{number}"
                )
            return
        at = micros_of(line.get("timestamp"))
        if kind == "response_item":
            self._append(checked_message(payload, self._notes), number, at)
        elif kind in _KEPT:
            if kind == "session_meta" and isinstance(payload.get("id"), str):
                self._name = self._name or payload["id"]
            if kind == "compacted" and self._last >= 0:
                self._summaries.append(SourceSummary(self._last, _summary_of(payload)))
            event = SourceItem(checked_payload(payload), at, event=f"codex.{kind}")
            self._last = self.tree.add(event, self._last)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._knows = True
            self._roll_back(payload.get("num_turns"))
        elif kind in _REPEATS:
            self._knows = True
            self._notes.skip(f"lines of type {kind}")
        else:
            self._notes.skip(f"lines of unknown type {kind[:40]!r}")

    def _append(self, message: dict[str, Any], number: int, at: int | None) -> None:
        item = SourceItem(message, at, {"codex": {"line": number}})
        self._last = self.tree.add(item, self._last)
        if message.get("role") == "user" and not _text_of(message).startswith(_INJECTED):
            self._turns.append(self._last)

    def _roll_back(self, turns: Any) -> None:
        """Continue before the last turns of the user; what they were becomes a fork."""
        if not isinstance(turns, int) or not 0 < turns <= len(self._turns):
            self._notes.skip("rollbacks of turns that the rollout does not hold")
            return
        self._branches.append(self._last)
        first = self._turns[-turns]
        del self._turns[-turns:]
        after = self.tree.items[first].after
        self._last = first - 1 if after is None else after

    def conversation(self) -> SourceConversation:
        """Return what was read."""
        name = self._name or name_of_file(self._file)
        found = SourceConversation(self.tree.place, name, "openai_responses", self.tree.items)
        found.leaf = self._last
        found.summaries = self._summaries
        live = set(self.tree.path(self._last))
        for number, leaf in enumerate(self._branches, 1):
            if leaf not in live:
                found.branches.append(SourceBranch(f"rolled-back-{number}", leaf))
        return found


def _summary_of(payload: dict[str, Any]) -> str:
    """Return the text of a compaction: its message, or the last one that replaces the history."""
    text = payload.get("message")
    if isinstance(text, str) and text:
        return text
    history = payload.get("replacement_history")
    listed = history if isinstance(history, list) else []
    texts = [_text_of(each) for each in listed if isinstance(each, dict)]
    return next((each for each in reversed(texts) if each), "(compacted)")
