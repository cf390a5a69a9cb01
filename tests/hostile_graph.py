"""A file whose graph threads name code to run, and every verb of the command line over it.

Run as a program: ``hostile_graph.py DIRECTORY`` prints, as JSON by verb, what was imported or
called of what the file names (nothing, if all is well), and its exit code.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.graph import GraphStore, NewCheckpoint, NewWrites
from memcore.privacy.redact_packed import Extension, pack

MARK = "memcore_hostile_mark"
"""Part of all that the file would have run."""
TS = "2026-01-01T00:00:00+00:00"
CALLS = (
    ("os", "system", f": {MARK}"),
    ("builtins", "eval", f"'{MARK}'"),
    ("builtins", "exec", f"'{MARK}'"),
    ("subprocess", "getoutput", f": {MARK}"),
    ("importlib", "import_module", MARK),
    (MARK, "anything", "x"),
)
_CODES = range(10)
_EVENTS = ("import", "exec", "compile", "os.system", "subprocess.Popen", "pickle.find_class")


@dataclass(frozen=True, slots=True)
class Raw:
    """Stores typed content as it is given."""

    identity: object = "raw"
    splits: bool = True
    secret: bool = False
    wrappers: dict[type, Any] = field(default_factory=dict)

    def encode(self, value: Any) -> tuple[str, bytes]:
        return value if isinstance(value, tuple) else ("msgpack", pack(value))

    def decode(self, typed: tuple[str, bytes]) -> Any:
        return typed

    def seal(self, typed: tuple[str, bytes]) -> tuple[str, bytes]:
        return typed

    open = seal


class _Calling:
    """Pickled, a call."""

    def __init__(self, call: Callable[..., Any], argument: str) -> None:
        self.made = call, (argument,)

    def __reduce__(self) -> Any:
        return self.made


def payloads() -> list[tuple[str, bytes]]:
    """Typed contents of which each names something to call, in each form that a serialiser has."""
    found = []
    for module, name, argument in CALLS:
        for arguments in (argument, [argument], {"command": argument}):
            packed = pack([module, name, arguments, "__call__"])
            found += [("msgpack", pack(Extension(code, packed))) for code in _CODES]
        for version in (1, 2):
            made = {"lc": version, "type": "constructor", "id": [module, name]}
            made |= {"args": [argument], "kwargs": {}, "method": [None, "__call__"]}
            found.append(("json", json.dumps(made).encode()))
    found.append(("pickle", pickle.dumps(_Calling(eval, f"'{MARK}'"))))
    return found


def _hidden(content: bytes) -> Any:
    """What stands in a body or metadata, beside what a prune has to read."""
    extension = Extension(content[1] if content else 0, content[3:])
    return [extension, {"deep": extension}]


def write(path: Path) -> None:
    """A file whose bodies, metadata, values and pending writes name code."""
    with memcore.open(path) as db:
        db.session("beside").append({"role": "user", "content": "hello"})
        graph = db.scope().graph
        for at, payload in enumerate(payloads()):
            thread = f"t{at % 7}"
            evil = _hidden(payload[1]) if payload[0] == "msgpack" else None
            body = {"v": 4, "ts": TS, "channel_versions": {"c": at, "l": at}, "evil": evil}
            values = {"c": (at, payload), "l": (at, [payload] * 5)}
            meta = {"step": at, "evil": evil, "run_id": MARK}
            graph.put(thread, "", NewCheckpoint(f"{at:04}", None, body, meta, values), Raw())
            _put_writes(graph, thread, at, payload)
        # A whole body in each form: nothing can be told of it, and nothing is.
        for at, payload in enumerate(payloads()[::7]):
            new = NewCheckpoint(f"{at:04}", None, payload, payload, {})
            graph.put(f"opaque {at}", "", new, Raw())


def _put_writes(graph: GraphStore, thread: str, at: int, payload: tuple[str, bytes]) -> None:
    writes = [(0, "c", payload), (-1, "__error__", payload)]
    graph.put_writes(thread, "", NewWrites(f"{at:04}", "task", "", writes), Raw())


def verbs(path: Path) -> list[list[str]]:
    """The verbs of the command line that open a file, those that change it at the end."""
    store = ["--store", str(path)]
    target = [str(path.with_name(name)) for name in ("backup", "saved", "restored", "lines")]
    return [
        ["check", *store],
        ["doctor", *store],
        ["stats", *store],
        ["ls", *store],
        ["tree", *store],
        ["show", "beside", *store],
        ["diff", "beside", "beside", *store],
        ["context", "beside", *store],
        ["retention", "show", *store],
        ["prune", "--dry-run", *store],
        ["recover", "t0", "--thread", "--dry-run", *store],
        ["export", "--all", "--to", target[3], *store],
        ["redact", "--dry-run", *store],
        ["backup", target[0], *store],
        ["salvage", str(path), "--to", target[1]],
        ["restore", target[0], "--store", target[2]],
        ["sweep", "--yes", *store],
        ["repair", "beside", "--yes", *store],
        ["recover", "t1", "--thread", "--yes", *store],
        ["prune", "--yes", *store],
        *(["prune", f"t{at}", "--yes", *store] for at in range(7)),
        ["copy-compact", *store],
        ["erase", "nobody", "--yes", *store],
    ]


def main(path: Path) -> None:
    """Run them under an audit hook."""
    write(path)
    seen: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and (MARK in repr(arguments) or event == "pickle.find_class"):
            seen.append(f"{event}: {arguments!r:.200}")

    sys.addaudithook(hook)
    told: list[tuple[str, int, list[str], str]] = []
    for words in verbs(path):
        ran = CliRunner().invoke(app, words, env={"MEMCORE_STORE": None})
        told.append((" ".join(words[:1]), ran.exit_code, seen[:], ran.output[-2000:]))
        seen.clear()
    pickle.loads(payloads()[-1][1])  # what the hook has to see
    told.append(("control", 0, seen[:], ""))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "hostile.memcore")
