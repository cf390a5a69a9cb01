"""``memcore bench``: append, cut, context, compaction and tokens on the user's own data."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

import memcore
from memcore._fast import build_flavour
from memcore.bench.measure import QUESTIONS, BenchRow, measured
from memcore.bench.plot import Bar, bar_chart, line_chart, number, page
from memcore.bench.workload import Workload, generated, read_workload
from memcore.cli.compact import policy_option
from memcore.cli.options import FiniteRange, json_option, need_new, verb
from memcore.cli.output import emit_json, escape, print_pairs, print_table, stages, warn
from memcore.compaction import CompactionPolicy
from memcore.wire import POLICIES

__all__ = [
    "run_bench",
]

FAILURES_SHOWN = 5


@verb("bench")
@click.argument(
    "data",
    required=False,
    metavar="[FILE]",
    help="Conversations, one a line, or an export (generated ones).",
)
@policy_option
@click.option(
    "--pairs",
    metavar="POLICY",
    help="Which calls and results are pairs, of conversations that do not say it: "
    f"{', '.join(POLICIES)}.",
)
@click.option("--counter", default="o200k_base", help="The token counter.")
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Budget of contexts (a quarter of each).",
)
@click.option(
    "--only",
    type=click.Choice(QUESTIONS),
    multiple=True,
    metavar="QUESTION",
    help=f"One of {', '.join(QUESTIONS)}; repeatable.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.0, max=600.0),
    default=2.0,
    help="Time for each measurement.",
)
@click.option("--place", metavar="DIR", help="A directory on the device to measure (temporary).")
@click.option("--html", metavar="FILE", help="Write a page with plots there.")
@json_option
def run_bench(
    data: str | None,
    *,
    policy: CompactionPolicy | None,
    pairs: str | None,
    counter: str,
    budget: int | None,
    only: tuple[str, ...],
    seconds: float,
    place: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Measure memcore on your own conversations and compaction policy; your file is only read.

    Without FILE, conversations of agents are generated. Files that are written to measure lie in a
    temporary directory, and are gone afterwards.
    """
    _check_places(place, html)
    options: dict[str, Any] = {
        "policy": policy,
        "counter": counter,
        "budget_tokens": budget,
    }
    if data is None:
        workload = generated(pairs=pairs or "openai_chat", **options)
    else:
        workload = read_workload(data, pairs=pairs, **options)
    for failure in workload.failures[:FAILURES_SHOWN]:
        warn(f"{escape(data or '')}: left out: {failure}")
    with stages() as report:
        rows = measured(
            workload, questions=tuple(only or QUESTIONS), seconds=seconds, place=place,
            report=report,
        )  # fmt: skip
    facts = _facts(workload)
    if html is not None:
        with open(html, "x", encoding="utf-8") as file:
            file.write(_page(rows, facts))
    if as_json:
        emit_json("bench", {"run": dict(facts), "rows": [asdict(row) for row in rows]})
        return
    print_table(_HEADINGS, map(_cells, rows), flexible=-1)
    print()
    print_pairs(facts)
    if html is not None:
        print(f"\nplots: {escape(html)}")


def _check_places(place: str | None, html: str | None) -> None:
    """Refuse places that cannot be written before anything is measured."""
    if place is not None and not os.path.isdir(place):
        msg = f"--place: there is no directory {place!r}"
        raise memcore.NotFoundError(msg)
    if html is not None:
        need_new(html)


_HEADINGS = ("question", "operation", "median", "p10", "p90", "unit", "samples", "note")


def _cells(row: BenchRow) -> tuple[object, ...]:
    figures = (number(each) for each in (row.median, row.p10, row.p90))
    return (row.question, row.what, *figures, row.unit, row.samples, row.note)


def _facts(workload: Workload) -> list[tuple[str, object]]:
    flavour = build_flavour()
    if flavour != "release":
        warn(f"memcore's core is a {flavour} build, whose times mean nothing")
    return [
        ("data", workload.source),
        ("conversations", len(workload.conversations)),
        ("items", workload.items),
        ("left out", len(workload.failures)),
        ("policy", workload.policy.name),
        ("counter", workload.counter),
        ("memcore", memcore.__version__),
        ("build", flavour),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("cores", os.cpu_count() or 0),
        ("date", datetime.now(UTC).isoformat(timespec="seconds")),
    ]


_PER_SECOND = {"ns": 1e-3, "µs": 1.0}


def _page(rows: list[BenchRow], facts: list[tuple[str, object]]) -> str:
    timed = [row for row in rows if row.unit in _PER_SECOND]
    others = [row for row in rows if row.unit not in _PER_SECOND]
    charts = []
    if timed:
        bars = [_bar(row, _PER_SECOND[row.unit]) for row in timed]
        charts.append(
            bar_chart("Time of an operation (µs)", bars, log=True, note="median, p10 to p90")
        )
        lines = {
            row.what: [(5.0 * at, _PER_SECOND[row.unit] * y) for at, y in enumerate(row.spread)]
            for row in timed
        }
        title = "Times of all samples"
        charts.append(line_chart(title, lines, x="percentile", y="µs", log=True))
    charts += [
        bar_chart(f"{row.what} ({row.unit})", [_bar(row, 1.0)], note=row.note) for row in others
    ]
    return page(
        "memcore bench", facts=facts, headings=_HEADINGS, rows=map(_cells, rows), charts=charts
    )


def _bar(row: BenchRow, by: float) -> Bar:
    text = f"{number(row.median)} {row.unit}"
    return Bar(row.what, by * row.median, text, by * row.p10, by * row.p90)
