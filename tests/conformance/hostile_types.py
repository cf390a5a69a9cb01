"""Reads a file that names what must not run, in a process of its own: ``hostile_types.py FILE``.

Prints JSON: the outcome of each reading, and what the interpreter's audit saw meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import memcore
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver

OPTION = ormsgpack.OPT_NON_STR_KEYS
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.mkdir", "subprocess.Popen",
           "pickle.find_class", "socket.connect", "webbrowser.open")  # fmt: skip
MODULES = ("antigravity", "this", "idlelib", "turtle", "langchain_core.prompts")


@dataclass
class Forged:
    """Bytes that go into the file as they are."""

    kind: str
    content: bytes


class Forger(JsonPlusSerializer):
    """Writes what nobody serialised."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, dict) and isinstance(obj.get("forged"), str):
            obj = payloads(os.environ["MARK"])[obj["forged"]]
        return (obj.kind, obj.content) if isinstance(obj, Forged) else super().dumps_typed(obj)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def payloads(mark: str) -> dict[str, Forged]:
    """What a hostile file may hold, by name."""
    command = f"mkdir {mark}"
    targets: dict[str, tuple[Any, ...]] = {
        "system": ("os", "system", command, "upper"),
        "mkdir": ("os", "mkdir", mark, "upper"),
        "eval": ("builtins", "eval", f"__import__('os').mkdir({mark!r})", "upper"),
        "exec": ("builtins", "exec", f"__import__('os').mkdir({mark!r})", "upper"),
        "popen": ("subprocess", "Popen", ["mkdir", mark], "communicate"),
        "run": ("subprocess", "run", {"args": ["mkdir", mark]}, "upper"),
        "import": ("importlib", "import_module", "antigravity", "upper"),
        "module": ("this", "s", "x", "upper"),
        "method": ("pathlib", "Path", mark, "mkdir"),
        "safe method": ("builtins", "set", [1], "pop"),
    }
    found: dict[str, Forged] = {}
    for name, (module, attribute, argument, method) in targets.items():
        safe = "method" in name  # that of a type that may be built
        for code in (3,) if safe else (0, 1, 2, 3, 4, 5):
            given = argument
            if code == 1:
                given = [argument]
            elif code in (2, 4, 5) and not isinstance(argument, dict):
                given = {"args": argument, "command": argument, "path": argument}
            ext = _ext(code, (module, attribute, given, method))
            found[f"{name} {code}"] = _packed(ext)
    system = _ext(0, ("os", "system", command))
    found |= {
        "snapshot": _packed(_ext(7, system)),
        "deep": _packed([{"a": [system]}]),
        "argument": _packed(_ext(0, ("builtins", "set", [system]))),
        "array": _packed(_ext(6, ("<i8", [1], "C", system))),
        "json 2": _json(
            {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [command]}
        ),
        "json run": _json(
            [{"lc": 2, "type": "constructor", "id": ["subprocess", "run"],
              "kwargs": {"args": ["mkdir", mark]}}]
        ),
        "json 1": _json(
            {"lc": 1, "type": "constructor", "kwargs": {"template": "x"},
             "id": ["langchain_core", "prompts", "prompt", "PromptTemplate"]}
        ),
        "json secret": _json({"lc": 1, "type": "secret", "id": ["HOME"]}),
        "pickle": Forged("pickle", pickle.dumps(Evil(mark))),
    }  # fmt: skip
    return found


def _ext(code: int, content: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(content, option=OPTION))


def _packed(content: Any) -> Forged:
    return Forged("msgpack", ormsgpack.packb(content, option=OPTION))


def _json(content: Any) -> Forged:
    return Forged("json", json.dumps(content).encode())


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def write(path: str, mark: str) -> None:
    """Make the file: each payload as a value, a pending write, metadata, and a cached value."""
    os.environ["MARK"] = mark
    with memcore.open(path) as db:
        saver = MemcoreSaver(db, serde=Forger())
        cache: MemcoreCache[Any] = MemcoreCache(db, serde=Forger())
        for name, made in payloads(mark).items():
            for kind in ("value", "write", "metadata"):
                checkpoint: Any = {
                    "v": 4, "id": "1", "ts": "2026-11-22T10:00:00+00:00", "versions_seen": {},
                    "channel_values": {"n": made} if kind == "value" else {},
                    "channel_versions": {"n": "1"} if kind == "value" else {},
                }  # fmt: skip
                metadata: Any = {"forged": name} if kind == "metadata" else {}
                put = saver.put(config(f"{kind}: {name}"), checkpoint, metadata, {"n": "1"})
                if kind == "write":
                    saver.put_writes(put, [("n", made)], "task")
            if made.kind != "pickle":
                cache.set({(("n",), name): (made, None)})


def read_all(saver: MemcoreSaver, cache: MemcoreCache[Any], of: str, outcome: Any) -> None:
    """Read every thread and cached value with what is of one serialiser."""
    for name in payloads(""):
        for kind in ("value", "write", "metadata"):
            at = config(f"{kind}: {name}")
            where = f"{of}, {kind}: {name}, "
            outcome(where + "get", partial(saver.get_tuple, at))
            outcome(where + "aget", lambda at=at: asyncio.run(saver.aget_tuple(at)))
            outcome(where + "list", lambda at=at: list(saver.list(at)))
        thread = f"value: {name}"
        outcome(f"{of}, {name}, context", partial(saver.context, thread, channel="n"))
        outcome(f"{of}, {name}, cache", partial(cache.get, [(("n",), name)]))
    outcome(f"{of}, check", lambda: len(saver.check()))
    for name in payloads(""):
        outcome(f"{of}, {name}, prune", partial(saver.prune, [f"value: {name}"]))


def read(path: str) -> None:
    """Read all of it in every way that there is, and print what came of it."""
    seen: list[str] = []
    watching = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching and (event in WATCHED or (event == "import" and args[0] in MODULES)):
            seen.append(f"{event} {args!r:.80}")

    sys.addaudithook(hook)
    outcomes: dict[str, str] = {}

    def outcome(where: str, call: Callable[[], Any]) -> None:
        try:
            outcomes[where] = f"{call()!r:.80}"
        except memcore.MemcoreError as exc:
            outcomes[where] = type(exc).__name__

    watching = True
    with memcore.open(path) as db:
        for of, serde in (("default", None), ("permissive", JsonPlusSerializer())):
            read_all(MemcoreSaver(db, serde=serde), MemcoreCache(db, serde=serde), of, outcome)
        db.check()
    watching = False
    print(json.dumps({"outcomes": outcomes, "seen": seen, "payloads": len(payloads(""))}))  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 2:
        write(sys.argv[1], sys.argv[2])
    else:
        read(sys.argv[1])
