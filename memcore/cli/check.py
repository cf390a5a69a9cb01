"""``memcore check``: check a file, and list the repairs for its findings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

import memcore
from memcore.cli.options import ExitCode, graphs_of, json_option, reading, store_option, verb
from memcore.cli.output import emit_json, escape, progress
from memcore.codec.values import DAMAGE_ADVICE
from memcore.maintenance.check import RepairPlan, plan_repairs
from memcore.options import counted

__all__ = [
    "check_store",
]


@verb("check")
@store_option
@click.option("--repair-plan", is_flag=True, help="Say what can be done about the findings.")
@json_option
def check_store(store: str, *, repair_plan: bool, as_json: bool) -> None:
    """Check the whole file: structure, checksums, index, chains, references.

    Findings are listed on stdout; the exit code is then 1. A file too damaged to be opened is an
    error; with --repair-plan, the plan covers that error like a finding.
    """
    try:
        findings, hygiene, sessions, items = _findings(store)
    except memcore.CorruptStoreError as error:
        if repair_plan:
            _report(store, [str(error)], [], {}, planned=True, as_json=as_json)
        raise
    _report(
        store,
        findings,
        hygiene,
        {"sessions": sessions, "items": items},
        planned=repair_plan,
        as_json=as_json,
    )
    if findings:
        raise SystemExit(ExitCode.FINDINGS)


def _findings(store: str) -> tuple[list[str], list[str], int, int]:
    """Findings, leftovers that could be removed, and the numbers of sessions and items."""
    with reading(store, verify=False) as db:  # the check itself verifies, and lists findings
        with progress("checking") as report:
            findings = db.check(progress=report)
        entries = list(db.sessions())
        graphs = () if findings else graphs_of(db)
        hygiene = [what for _, _, graph in graphs for what in graph.leftovers()]
    return findings, hygiene, len(entries), sum(entry.items for entry in entries)


def _report(
    store: str,
    findings: list[str],
    hygiene: list[str],
    counts: dict[str, int],
    *,
    planned: bool,
    as_json: bool,
) -> None:
    plan = plan_repairs(findings, store) if planned else None
    if as_json:
        fields: dict[str, Any] = {
            "ok": not findings,
            "findings": findings,
            "hygiene": hygiene,
            **counts,
        }
        if plan is not None:
            fields["repair_plan"] = asdict(plan)
        emit_json("check", fields)
        return
    if plan is None:
        for finding in findings:
            print(escape(finding))
    else:
        _print_plan(plan)
    for what in hygiene:
        print(escape(f"no damage, 'memcore prune' removes it: {what}"))
    verdict = counted(len(findings), "finding") if findings else "ok"
    found = ", ".join(counted(count, what.removesuffix("s")) for what, count in counts.items())
    print(f"{verdict}: {found}" if found else verdict)


def _print_plan(plan: RepairPlan) -> None:
    """Print the steps of a repair plan, then the findings by kind of damage."""
    for number, step in enumerate(plan.steps, 1):
        print(escape(f"{number}. {step}"))
    for repair in plan.repairs:
        print(f"\n{repair.about}: a salvage {repair.salvage}")
        if repair.instead:
            print(f"  or: {repair.instead}")
        for finding in repair.findings:
            print(escape(f"  - {finding.replace(DAMAGE_ADVICE, '')}"))
    if plan.steps:
        print()
