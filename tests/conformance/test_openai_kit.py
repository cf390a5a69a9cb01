"""A part of the Agents SDK's own tests, where the whole kit was made ready before.

The whole of it is a command: ``python tests/conformance/openai_kit.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).with_name("openai_kit.py")
FILES = ("tests/memory/test_session_limit.py", "tests/utils/test_simple_session.py")


@pytest.mark.skipif("MEMCORE_OPENAI_KIT" not in os.environ, reason=(
    "MEMCORE_OPENAI_KIT=DIR runs a part of the SDK's own tests, in an environment made in DIR; "
    "all of them: python tests/conformance/openai_kit.py"
))  # fmt: skip
def test_a_part_of_the_kit_goes_as_listed():
    home = os.environ["MEMCORE_OPENAI_KIT"]
    command = [sys.executable, str(KIT), "--home", home, *FILES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 made a session: 18 passed" in done.stdout
