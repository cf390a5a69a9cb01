"""``python -m bench``: every question in one table, the rows that we lose included."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
if str(HERE.parent) not in sys.path:  # `python bench` from elsewhere
    sys.path.insert(1, str(HERE.parent))

import report  # noqa: E402 - siblings need the path above
from harness import FULL, QUICK, Effort, Row  # noqa: E402

NAMES = (
    "push", "cut", "append", "flush", "relaxed", "threads", "open", "tail", "memory", "bytes",
    "history", "seed", "tokens", "breaks", "compaction", "turns", "reduction", "redaction",
    "deepagents", "langgraph_store", "checkpoints", "graphs", "footprint", "openai_agents", "adk",
    "security", "search", "learning", "payload", "a2a", "frameworks", "fuzz", "importing",
    "postgres", "warm", "capacity",
)  # fmt: skip


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter: a look, not a result")
    parser.add_argument("--only", action="append", choices=NAMES, help="one of them; repeatable")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the figures there, as SVG")
    parser.add_argument(
        "--from", dest="read", type=Path, metavar="PATH", help="a file of --json: measure nothing"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args(given)


def measured(names: tuple[str, ...], effort: Effort) -> list[tuple[str, list[Row]]]:
    """The rows of the named benchmarks; what is under way is told on stderr."""
    groups = []
    for name in names:
        print(f"bench_{name} ...", file=sys.stderr, flush=True)
        module = importlib.import_module(f"bench_{name}")
        groups.append((name, list(module.rows(effort))))
    return groups


def main(given: list[str] | None = None) -> int:
    """Measure and print; 0 if it could be measured, whatever came out."""
    arguments = _arguments(given)
    if arguments.read is not None:
        _draw(report.read_json(arguments.read), arguments)
        return 0
    from memcore import _fast

    flavour = _fast.build_flavour()
    if flavour != "release":
        print(
            f"memcore._fast is a {flavour} build, which measures nothing: build for release with"
            " 'python setup.py build_ext --inplace --force'",
            file=sys.stderr,
        )
        return 2
    effort = QUICK if arguments.quick else FULL
    names = tuple(name for name in NAMES if not arguments.only or name in arguments.only)
    facts = report.machine(effort)
    groups = measured(names, effort)
    print(report.markdown(groups, facts) if arguments.markdown else report.terminal(groups))
    if arguments.json is not None:
        report.write_json(arguments.json, groups, facts)
    if arguments.plots is not None:
        _draw(groups, arguments)
    return 0


def _draw(groups: list[tuple[str, list[Row]]], arguments: argparse.Namespace) -> None:
    """Draw the chosen groups."""
    chosen = [each for each in groups if not arguments.only or each[0] in arguments.only]
    for path in report.plotted(chosen, arguments.plots or Path("plots")):
        print(path, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
