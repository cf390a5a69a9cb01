"""Runs one function of a benchmark in this (fresh, perhaps preloaded) process; JSON in and out."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    module, function, arguments = sys.argv[1:]
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "shim")]
    from harness import NotInstalled

    try:
        found = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    except NotInstalled as error:
        print(json.dumps({"not_installed": str(error)}))
        return
    print(json.dumps({"result": found}))


if __name__ == "__main__":
    main()
