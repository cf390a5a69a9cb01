"""A file that names code to run: no verb of the command line imports or calls what it names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hostile_graph


def test_no_verb_calls_what_a_file_names(tmp_path: Path) -> None:
    command = [sys.executable, hostile_graph.__file__, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout)
    control = told.pop()
    assert control[2], "the hook sees what is called"
    called = {verb: events for verb, _, events, _ in told if events}
    assert called == {}
    codes = [(verb, code) for verb, code, _, _ in told]
    assert all(code in (0, 5) for _, code in codes), codes
    assert ("check", 0) in codes
    assert [code for verb, code in codes if verb == "prune"] == [5, 5, *[0] * 7]
