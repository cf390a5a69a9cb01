"""Child process of the demo: commits in a loop and kills itself."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import memcore

__all__ = [
    "SESSION",
    "USER",
    "Acknowledged",
    "pair",
    "run_child",
    "storm",
]


USER: Final = "demo"
SESSION: Final = "storm"
WRITERS: Final = 4
ACKNOWLEDGED_MIN: Final = 200
SECONDS_MAX: Final = 1.5
_RECORD: Final = struct.Struct("<QII")  # seq of the result, writer, number

Acknowledged = tuple[int, int, int]
"""``(seq, writer, number)`` of one commit that returned."""


def pair(writer: int, number: int) -> list[dict[str, Any]]:
    """The items of one commit: a call and its result."""
    call_id = f"call_{writer}_{number}"
    function = {"name": "count", "arguments": json.dumps({"writer": writer, "number": number})}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": f"{writer}/{number}"},
    ]


def storm(path: str, pipe: int) -> None:
    """Commit from several threads, acknowledge each commit, then SIGKILL this process."""
    session = memcore.open(path).session(SESSION, user=USER)
    enough = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while True:
            receipt = session.extend(pair(writer, number))
            os.write(pipe, _RECORD.pack(receipt.seq, writer, number))
            number += 1
            if number * WRITERS >= ACKNOWLEDGED_MIN:
                enough.set()

    for writer in range(WRITERS):
        threading.Thread(target=write, args=(writer,), daemon=True).start()
    enough.wait(SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGKILL)  # the writers are in the middle of their commits


def run_child(path: Path) -> tuple[list[Acknowledged], int]:
    """Run the storm in a child process; return the acknowledged commits and the exit status."""
    code = "import sys; from memcore.cli.storm import storm; storm(sys.argv[1], 1)"
    home, here = os.path.dirname(memcore.__path__[0]), os.path.realpath(os.curdir)
    # This process's search path without the current directory, which ``python -m`` puts first: it
    # may contain modules of any name.
    search = [p for p in sys.path if p and (p == home or os.path.realpath(p) != here)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    ran = subprocess.run(  # noqa: S603 - this interpreter, on this package
        [sys.executable, "-P", "-c", code, os.fspath(path)],  # -P: not the current directory
        env=environment,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    whole = len(ran.stdout) - len(ran.stdout) % _RECORD.size
    return list(_RECORD.iter_unpack(ran.stdout[:whole])), ran.returncode
