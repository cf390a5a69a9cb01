"""The comparison table: for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from harness import Effort, Figure, Row, Target, scratch
from memcore.bench.plot import Bar, bar_chart
from rivals import SQLITE_VERSION

__all__ = [
    "COLUMNS",
    "cells",
    "machine",
    "markdown",
    "plotted",
    "read_json",
    "terminal",
    "write_json",
]

COLUMNS = (
    "question", "durability", "memcore", "rival", "the rival's", "ratio", "target", "met", "n",
)  # fmt: skip
_SCHEDULERS = {0: "normal", 1: "real-time", 2: "real-time"}
PACKAGES = (
    "lmdb", "orjson", "xxhash", "openai-agents", "tiktoken", "langchain-core", "langchain",
    "llama-index-core", "autogen-core", "google-adk", "deepagents",
    "langgraph", "langgraph-checkpoint-sqlite", "aiosqlite", "sqlalchemy",
)  # fmt: skip


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _figure(figure: Figure | None, unit: str) -> str:
    if figure is None:
        return "-"
    spread = f" [{_number(figure.p10)}–{_number(figure.p90)}]" if figure.p10 != figure.p90 else ""
    return f"{_number(figure.median)}{spread} {unit}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    what = "× faster" if row.faster else "×"
    spread = f"[{_number(row.ratio.p10)}–{_number(row.ratio.p90)}]"
    if row.ratio.p10 == row.ratio.p90:
        return f"{_number(row.ratio.median)}{what}"
    return f"{_number(row.ratio.median)} {spread}{what}"


def _target(target: Target | None, row: Row) -> str:
    if target is None:
        return "-"
    sign = "≤" if target.most else "≥"
    unit = row.unit if target.subject == "ours" else ("× faster" if row.faster else "×")
    return f"{sign} {target.bound:g}{' ' if target.subject == 'ours' else ''}{unit}"


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of ``COLUMNS``."""
    met = "-" if row.target is None else {True: "yes", False: "NO", None: "?"}[row.met]
    ours = row.note if row.ours is None else _figure(row.ours, row.unit)
    return (
        row.question,
        row.durability,
        ours,
        row.rival or "-",
        _figure(row.theirs, row.unit),
        _ratio(row),
        _target(row.target, row),
        met,
        str(row.n),
    )


def terminal(groups: list[tuple[str, list[Row]]]) -> str:
    """Columns of equal width, a heading a benchmark, notes below their rows."""
    table = [COLUMNS, *(cells(row) for _, rows in groups for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(COLUMNS))]

    def line(texts: tuple[str, ...]) -> str:
        return "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True))

    lines = [line(COLUMNS), "  ".join("-" * width for width in widths)]
    for name, rows in groups:
        lines.append(f"[{name}]")
        for row in rows:
            lines.append(line(cells(row)).rstrip())
            if row.note and row.ours is not None:
                lines.append(f"    {row.note}")
    return "\n".join(lines)


def markdown(groups: list[tuple[str, list[Row]]], facts: dict[str, Any]) -> str:
    """A table to paste between the markers of the README and of docs/benchmarks.md."""
    lines = [
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join("---" for _ in COLUMNS) + "|",
    ]
    notes: list[str] = []
    for _, rows in groups:
        for row in rows:
            texts = [text.replace("|", "\\|") for text in cells(row)]
            if row.note and row.ours is not None:
                if row.note not in notes:
                    notes.append(row.note)
                texts[0] += f" ({notes.index(row.note) + 1})"
            if row.met is False:
                texts[7] = "**NO**"
            lines.append("| " + " | ".join(texts) + " |")
    lines += ["", *(f"({at}) {note}." + "  " for at, note in enumerate(notes, 1))]
    lines += ["", _sentence(facts)]
    return "\n".join(lines)


def _sentence(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in facts["versions"].items() if found)
    return (
        f"Medians [p10–p90] of {facts['effort']} run on {facts['date'][:10]}: {facts['cpu']},"
        f" {facts['cores']} cores, load {facts['load']}, {facts['scheduler']} priority,"
        f" {facts['system']}; a flush of 4 KiB on"
        f" the scratch disk takes {facts['flush_us']:,.0f} µs; {versions}."
    )


# --- where it ran --------------------------------------------------------------------------------


def machine(effort: Effort) -> dict[str, Any]:
    """Machine, versions, build flavour, date."""
    from memcore import _fast

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "effort": f"the {effort.name}",
        "commit": _commit(),
        "build_flavour": _fast.build_flavour(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "scheduler": _SCHEDULERS.get(os.sched_getscheduler(0), "other")
        if hasattr(os, "sched_getscheduler")
        else "other",
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "flush_us": _flush_us(),
        "versions": {
            "Python": platform.python_version(),
            "SQLite": SQLITE_VERSION,
            **{name: _version(name) for name in PACKAGES},
        },
        "command": " ".join(sys.argv[1:]),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()


def _flush_us() -> float:
    """The median time of a 4 KiB write with its flush, on the scratch disk."""
    times = []
    with scratch() as place:
        fd = os.open(place / "flush", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for _ in range(31):
                start = perf_counter_ns()
                os.pwrite(fd, bytes(4096), 0)
                os.fdatasync(fd)
                times.append((perf_counter_ns() - start) / 1e3)
        finally:
            os.close(fd)
    return sorted(times)[15]


def write_json(path: Path, groups: list[tuple[str, list[Row]]], facts: dict[str, Any]) -> None:
    """Everything, for other programs."""
    rows = [
        {"benchmark": name, **dataclasses.asdict(row), "met": row.met}
        for name, found in groups
        for row in found
    ]
    path.write_text(json.dumps({"run": facts, "rows": rows}, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[tuple[str, list[Row]]]:
    """The groups that ``write_json`` wrote."""
    groups: dict[str, list[Row]] = {}
    for told in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        name = told.pop("benchmark")
        told.pop("met")
        for key, kind in (
            ("ours", Figure),
            ("theirs", Figure),
            ("ratio", Figure),
            ("target", Target),
        ):
            told[key] = None if told[key] is None else kind(**told[key])
        groups.setdefault(name, []).append(Row(**told))
    return list(groups.items())


# --- plots ---------------------------------------------------------------------------------------

_LINEAR = {"%", "share", "×"}
_OURS, _THEIRS = 0, 1


def plotted(groups: list[tuple[str, list[Row]]], folder: Path) -> list[Path]:
    """A plot a benchmark and unit, ``NAME.svg`` or ``NAME-2.svg``: rows with a rival, or all."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, rows in groups:
        units = dict.fromkeys(row.unit for row in rows if row.ours is not None)
        for number, unit in enumerate(units, 1):
            shown = [row for row in rows if row.ours is not None and row.unit == unit]
            bars = _bars([row for row in shown if row.theirs is not None] or shown)
            title = f"{name} ({unit})"
            log = unit not in _LINEAR and all(isinstance(bar, str) or bar.value > 0 for bar in bars)
            path = folder / (f"{name}.svg" if number == 1 else f"{name}-{number}.svg")
            chart = bar_chart(title, bars, log=log, note="medians, p10 to p90; blue: memcore")
            path.write_text(chart + "\n", encoding="utf-8")
            found.append(path)
    return found


def _bars(rows: list[Row]) -> list[Bar | str]:
    """Each question as a heading, ours once below it, then the rivals'."""
    bars: list[Bar | str] = []
    last: tuple[str, str, Figure] | None = None
    for row in rows:
        assert row.ours is not None
        durability = "" if row.durability == "-" else f", {row.durability}"
        if last != (row.question, row.durability, row.ours):
            last = (row.question, row.durability, row.ours)
            bars.append(f"{row.question}{durability}")
            bars.append(_bar("memcore", row.ours, row.unit, _OURS))
        if row.theirs is not None:
            bars.append(_bar(row.rival, row.theirs, row.unit, _THEIRS))
    return bars


def _bar(label: str, figure: Figure, unit: str, color: int) -> Bar:
    text = f"{_number(figure.median)} {unit}"
    return Bar(label, figure.median, text, figure.p10, figure.p90, color)
