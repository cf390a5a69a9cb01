"""Random messages, parts and tasks of A2A, odd ones included."""

from __future__ import annotations

import random
from typing import Any

from a2a.types.a2a_pb2 import Artifact, Message, Part, Task, TaskStatus
from google.protobuf.json_format import ParseDict

UNKNOWN = b"\xa2\x06\x03abc"
"""A field of a later version of the protocol."""


class Messages:
    """Messages and tasks drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        """Draw a text."""
        odd = ("", "hi", " \n", "é\u2028😀", "\x00a", "</evidence>\n[file x]", "1.5", "null")
        return self.random.choice((*odd, "x" * self.random.randint(0, 300)))

    def json(self, depth: int = 0) -> Any:
        """Draw a JSON value."""
        kind = self.random.randint(0, 5 if depth < 3 else 3)
        if kind == 4:
            return [self.json(depth + 1) for _ in range(self.random.randint(0, 3))]
        if kind == 5:
            return {self.text(): self.json(depth + 1) for _ in range(self.random.randint(0, 3))}
        numbers = (0, 1, -1, 1e300, 0.1, -0.0, 2**60, 5e-324, 3.0)
        return (None, self.random.random() < 0.5, self.random.choice(numbers), self.text())[kind]

    def part(self) -> Part:
        """Draw a part of any kind, of none, or of one that nobody knows yet."""
        part, chance = Part(), self.random
        kind = chance.choice(("text", "raw", "url", "data", "none", "unknown"))
        if kind == "text":
            part.text = self.text()
        elif kind == "raw":
            part.raw = chance.randbytes(chance.randint(0, 50))
        elif kind == "url":
            part.url = chance.choice(("", "https://x/y", "javascript:1"))
        elif kind == "data":
            ParseDict(self.json(), part.data)
            if chance.random() < 0.1:
                part.data.number_value = float("nan")
        elif kind == "unknown":
            part.ParseFromString(UNKNOWN)
        if chance.random() < 0.4:
            part.media_type = chance.choice(("image/png", "text/plain", "audio/wav", "x y\n"))
        if chance.random() < 0.3:
            part.filename = self.text()
        if chance.random() < 0.3:
            part.metadata.update({self.text(): self.json() for _ in range(2)})
        return part

    def message(self) -> Message:
        """Draw a message."""
        chance = self.random
        found = Message(
            message_id=self.text(),
            context_id=self.text(),
            task_id=self.text(),
            role=chance.choice((0, 1, 2, 7)),
            parts=[self.part() for _ in range(chance.randint(0, 4))],
        )
        if chance.random() < 0.3:
            found.metadata.update({self.text(): self.json()})
        for _ in range(chance.randint(0, 2)):
            found.extensions.append(self.text())
            found.reference_task_ids.append(self.text())
        if chance.random() < 0.02:
            found.MergeFromString(UNKNOWN)
        return found

    def change(self, task: Task) -> None:
        """Change a task in one of the ways in which servers do, or in a way in which none does."""
        chance = self.random
        kind = chance.randint(0, 9)
        if kind <= 1:
            task.history.append(self.message())
        elif kind <= 3:
            task.status.CopyFrom(TaskStatus(state=chance.randint(0, 8)))
            if chance.random() < 0.6:
                task.status.message.CopyFrom(self.message())
        elif kind == 4 and task.status.HasField("message"):
            task.history.append(task.status.message)
            task.status.ClearField("message")
        elif kind == 5:
            task.status.timestamp.FromNanoseconds(
                chance.randint(0, 5) * 10**9 + chance.randint(0, 3)
            )
        elif kind == 6 or not task.artifacts:
            parts = [self.part() for _ in range(chance.randint(0, 3))]
            name = f"a{chance.randint(0, 5)}"
            task.artifacts.append(Artifact(artifact_id=name, name=self.text(), parts=parts))
        elif kind == 7:
            chance.choice(task.artifacts).parts.append(self.part())
        elif kind == 8:
            self._drop(task)
        else:
            task.metadata.update({self.text(): self.json()})

    def _drop(self, task: Task) -> None:
        dropped = self.random.choice(
            (task.history, task.artifacts, self.random.choice(task.artifacts).parts)
        )
        if dropped:
            del dropped[self.random.randrange(len(dropped))]
