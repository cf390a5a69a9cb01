"""``python -m tests.fuzz TARGET [--seconds N]``: fuzz one target, coverage-guided with atheris.

Without atheris, or with ``--plain``, a random mutator over the same corpus serves. Under the
sanitizers (see CONTRIBUTING.md) use ``--plain``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Parse the command line and fuzz."""
    names = ("bpe", "graph_rows", "index", "json", "keys", "nodes", "redo", "resealed", "rows",
             "structure", "values", "vocabulary", "wire")  # fmt: skip
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=(*names, "all"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="never use atheris")
    parser.add_argument("--long", action="store_true", help="bpe: single pieces of 1 and 2 MiB")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))  # what tests share
    if options.long:
        if options.target != "bpe":
            parser.error("--long: only bpe has it")
        from .long_pieces import run_long

        run_long(options.seed)
        return
    if options.plain or options.target == "all" or not importlib.util.find_spec("atheris"):
        for name in names if options.target == "all" else (options.target,):
            _plainly(name, options.seconds, options.seed)
    else:
        _guided(options.target, options.seconds, options.seed)


def _plainly(name: str, seconds: float, seed: int) -> None:
    from .corpus import seeds
    from .mutations import run
    from .targets import TARGETS

    began = time.monotonic()
    done = run(TARGETS[name], seeds(name), seed=seed, seconds=seconds, runs=0)
    sys.stdout.write(f"{name}: {done} inputs in {time.monotonic() - began:.0f} s, no finding\n")


def _guided(name: str, seconds: float, seed: int) -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["memcore", "tests"]):
        from .corpus import seeds
        from .targets import TARGETS
    with tempfile.TemporaryDirectory() as folder:
        for at, data in enumerate(seeds(name)):
            Path(folder, f"seed-{at}").write_bytes(data)
        limits = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=65536"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", folder], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
