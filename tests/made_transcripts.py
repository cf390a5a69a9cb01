"""Transcripts, rollouts and exports as other programs write them, made anew for each test."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

SESSION = "11111111-1111-4111-8111-111111111111"


def text(said: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said}]


def use(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {"n": number}}


def result(number: int) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": str(number)}


class Transcript:
    """Lines as Claude Code writes them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def add(self, kind: str, uuid: str, parent: str | None, said: Any = None, **more: Any) -> None:
        line = {
            "type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, "cwd": "/tmp",
            "timestamp": f"2026-01-02T03:04:{len(self.lines):02d}.500Z", "isSidechain": False,
        }  # fmt: skip
        message_id = more.pop("message_id", None)
        if said is not None:
            line["message"] = {"role": kind, "content": said}
        if message_id is not None:
            line["message"] |= {"id": message_id, "model": "m", "usage": {"output_tokens": 1}}
        self.lines.append({**line, **more})

    def write(self, path: Path, end: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines) + end)
        return path


def transcript() -> Transcript:
    """Parallel calls, a rewind, a compaction, a sidechain, and lines that are no messages."""
    made = Transcript()
    made.add("user", "u1", None, "hello")
    made.add("assistant", "a1", "u1", text("both"), message_id="m1")
    made.add("assistant", "a2", "a1", [use(1)], message_id="m1")
    made.add("assistant", "a3", "a2", [use(2)], message_id="m1")
    made.add("user", "r1", "a2", [result(1)])
    made.add("user", "r2", "a3", [result(2)])
    made.add("assistant", "a4", "r2", text("first answer"), message_id="m2")
    made.add("user", "b1", "a4", text("first attempt"))
    made.add("assistant", "b2", "b1", text("first reply"), message_id="m3")
    made.add("user", "c1", "a4", text("second attempt"))
    made.add("assistant", "c2", "c1", text("second reply"), message_id="m4")
    made.add("system", "cb", None, subtype="compact_boundary", logicalParentUuid="c2")
    made.add("user", "cs", "cb", text("Summary: a plan."), isCompactSummary=True)
    made.add("user", "p1", "cs", text("after"))
    made.add("assistant", "p2", "p1", text("final"), message_id="m5")
    made.add("progress", "pr", "p2", data={"x": 1})
    made.add("user", "s1", None, "sub prompt", isSidechain=True)
    made.add("assistant", "s2", "s1", text("sub reply"), message_id="m9", isSidechain=True)
    made.lines.append({"type": "summary", "summary": "Plan", "leafUuid": "p2"})
    made.lines.append({"type": "a-kind-to-come", "x": 1})
    return made


class Wandering:
    """A transcript of a session that goes on at random: rewinds, parallel calls, compactions."""

    def __init__(self, rng: Random) -> None:
        self.transcript = Transcript()
        self._rng = rng
        self._at: str | None = None
        self._places: list[str] = []
        self._count = 0

    def write(self, path: Path, steps: int) -> Path:
        """Go some steps, and write the lines."""
        weights = (3, 2, 2, 1, 1, 1, 1)
        ways = (
            self._say, self._call, self._reply, self._rewind, self._compact, self._note, self._meta,
        )  # fmt: skip
        self._say()
        for way in self._rng.choices(ways, weights, k=steps):
            way()
        return self.transcript.write(path)

    def _add(self, kind: str, said: Any = None, *, parent: Any = ..., **more: Any) -> str:
        self._count += 1
        uuid = f"{kind[0]}{self._count}"
        self.transcript.add(kind, uuid, self._at if parent is ... else parent, said, **more)
        return uuid

    def _go(self, uuid: str) -> None:
        self._at = uuid
        self._places.append(uuid)

    def _say(self) -> None:
        self._go(self._add("user", text(f"say {self._count}")))

    def _reply(self) -> None:
        self._go(self._add("assistant", text("reply"), message_id=f"m{self._count}"))

    def _call(self) -> None:
        message_id, made, above = f"m{self._count}", [], self._at
        for _ in range(self._rng.randint(1, 3)):
            number = self._count
            above = self._add("assistant", [use(number)], parent=above, message_id=message_id)
            made.append((above, number))
        answers = {
            call: self._add("user", [result(number)], parent=call)
            for call, number in self._rng.sample(made, len(made))
        }
        self._go(answers[above])

    def _rewind(self) -> None:
        self._at = self._rng.choice(self._places)

    def _compact(self) -> None:
        more = {"subtype": "compact_boundary", "logicalParentUuid": self._at}
        self._at = self._add("system", parent=None, **more)
        self._places = []
        self._go(self._add("user", text("Summary."), isCompactSummary=True))

    def _note(self) -> None:
        uuid = self._add("progress", data={})
        self._at = self._rng.choice((uuid, self._at))

    def _meta(self) -> None:
        self._at = self._add("user", text("meta"), isMeta=True)


def rollout() -> list[dict[str, Any]]:
    def said(role: str, content: str) -> dict[str, Any]:
        return {
            "type": "message",
            "role": role,
            "content": [{"type": "input_text", "text": content}],
        }

    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    lines: list[tuple[str, dict[str, Any]]] = [
        ("session_meta", {"id": SESSION, "cwd": "/x"}),
        ("response_item", said("user", "<environment_context>")),
        ("response_item", said("user", "hello")),
        ("event_msg", {"type": "user_message", "message": "hello"}),
        ("response_item", {"type": "reasoning", "summary": [], "encrypted_content": "SECRET"}),
        ("response_item", call),
        ("response_item", {"type": "function_call_output", "call_id": "c1", "output": "1"}),
        ("compacted", {"message": "Short.", "replacement_history": [said("user", "Short.")]}),
        ("response_item", said("user", "wrong way")),
        ("response_item", said("assistant", "went")),
        ("event_msg", {"type": "thread_rolled_back", "num_turns": 1}),
        ("response_item", said("user", "right way")),
        ("a_type_to_come", {"x": 1}),
    ]
    return [
        {"timestamp": f"2026-01-02T03:04:{at:02d}.000Z", "type": kind, "payload": payload}
        for at, (kind, payload) in enumerate(lines)
    ]


def write_rollout(path: Path) -> bytes:
    plain = "".join(json.dumps(line) + "\n" for line in rollout()).encode()
    if path.suffix == ".zst":
        zstd = pytest.importorskip("zstandard")
        half = len(plain) // 2
        pieces = [zstd.ZstdCompressor().compress(each) for each in (plain[:half], plain[half:])]
        plain = b"".join(pieces)
    path.write_bytes(plain)
    return plain


def chat(name: str) -> dict[str, Any]:
    mapping: dict[str, Any] = {}

    def node(key: str, parent: str | None, role: str = "", *parts: Any, **more: Any) -> None:
        message = {
            "id": key, "author": {"role": role}, "create_time": 1700000000.5,
            "content": {"content_type": "text", "parts": list(parts)}, "recipient": "all", **more,
        }  # fmt: skip
        mapping[key] = {"id": key, "parent": parent, "message": message if role else None}

    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    node("root", None)
    node("u", "root", "user", "hi", picture)
    node("a1", "u", "assistant", "one")
    node("a2", "u", "assistant", "print(1)", recipient="python")
    node("t", "a2", "tool", "1")
    node("e", "t", "assistant", "done")
    return {
        "id": name, "title": "T", "create_time": 1700000000.1, "current_node": "e",
        "mapping": mapping,
    }  # fmt: skip


def write_chats(path: Path, chats: list[Any]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/conversations.json", json.dumps(chats))
    else:
        path.write_text(json.dumps(chats, indent=1))
    return path


HELLO, BYE = {"role": "user", "content": "hello"}, {"role": "user", "content": "bye"}
OWNED = {
    "id": "x", "messages": [HELLO],
    "metadata": {"memcore": {"app": "shop", "user": "ann", "policy": "anthropic"}},
}  # fmt: skip
