"""The check of power cuts: every workload in every mode, and every planted bug.

Finds what is lost, wrong or broken when the power fails at any moment, the recovery included. A
trial is a process of its own (``trial``); here they are chosen, run and counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from .controls import CONTROLS
from .outcome import Outcome, Part, Plan, Say
from .recording import preloaded
from .sealed import AVAILABLE
from .trial import Case
from .workloads import WORKLOADS

MODES = (("full", False), ("relaxed", False), ("full", True), ("relaxed", True))
"""Durability, and whether the file is encrypted."""
IMAGES_SHORT, IMAGES_LONG = 750, 10_000
"""For each mode."""
IMAGES_MAX = 150
"""Of one recording."""
CONTROL_IMAGES = 150
TRIAL_SECONDS = 900
_ENOUGH = 3


def parts(plan: Plan) -> list[Part]:
    """The controls, then all workloads in all modes, as often as it takes."""
    enough = 0 if plan.long and plan.thin == 1 else _ENOUGH
    found = [
        Part(
            f"power control {name} {plan.seed}, {enough}",
            partial(run_controls, [name], str(plan.seed), enough=enough),
        )
        for name, control in CONTROLS.items()
        if AVAILABLE or not control.sealed
    ]
    wanted = plan.cases(IMAGES_SHORT, IMAGES_LONG)
    turn = 0
    left = {mode: wanted for mode in MODES if AVAILABLE or not mode[1]}
    while left:
        for (durability, sealed), images in list(left.items()):
            names = workloads_for(sealed=sealed)
            each = min(IMAGES_MAX, -(-images // len(names)))
            for name in names:
                case = Case(name, durability, "", f"{plan.seed}.{turn}", each, sealed=sealed)
                named = f"power {case.mode}: {name} {case.seed}, {each} images"
                found.append(Part(named, partial(run_mode, [case])))
            left[durability, sealed] -= each * len(names)
            if left[durability, sealed] <= 0:
                del left[durability, sealed]
        turn += 1
    return found


def workloads_for(*, sealed: bool) -> list[str]:
    """The workloads of a mode: without a key those that change keys are none."""
    return [name for name, each in WORKLOADS.items() if sealed or not each.sealed]


def run_mode(cases: Sequence[Case], say: Say) -> Outcome:
    """The trials of one mode: any failing image is a finding."""
    mode = cases[0].mode
    findings: list[str] = []
    facts: dict[str, Any] = {}
    done = 0
    for case in cases:
        told = run_trial(case)
        done += told["images"]
        findings += findings_of(case, told)
        for name, count in (told["facts"] | {"seen": told["seen"]}).items():
            facts[name] = facts.get(name, 0) + count
        say(
            f"power {mode}: {case.workload} {case.seed}: {told['images']} images of"
            f" {told['records']} records, {len(told['findings'])} failed"
        )
    return Outcome(f"power {mode}", done, findings, facts)


def run_controls(names: Iterable[str], seed: str, say: Say, *, enough: int) -> Outcome:
    """The planted bugs: one that no image shows is a finding.

    ``enough`` failing images of a workload end it; 0 judges them all.
    """
    findings, facts, done = [], {}, 0
    for name in names:
        control = CONTROLS[name]
        failed = images = 0
        example = ""
        for workload in control.workloads:
            case = Case(workload, control.durability, name, seed, CONTROL_IMAGES, enough)
            told = run_trial(case._replace(sealed=control.sealed))
            failed += len(told["findings"])
            findings += [f"control {name}: {problem}" for problem in told["problems"]]
            images += told["images"]
            example = told["findings"][0][1][0] if told["findings"] else example
        done += images
        facts[name] = f"{failed}/{images}"
        say(f"power control {name}: {failed} of {images} images failed: {example}"[:200])
        if not failed:
            findings.append(f"the control {name} fails on no image: the harness is blind to it")
    return Outcome("power controls", done, findings, facts)


def run_trial(case: Case) -> dict[str, Any]:
    """What a trial says; one that dies says it by its error."""
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-m", f"{__package__}.trial", json.dumps(case)],
        env=preloaded() | {"PYTHONPATH": path},
        capture_output=True,
        timeout=TRIAL_SECONDS,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"the trial {case} died:\n{ran.stderr.decode()[-4000:]}")
    told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if told["problems"]:
        told["problems"].append(ran.stderr.decode()[-4000:])
    return told


def findings_of(case: Case, told: dict[str, Any]) -> list[str]:
    """What went wrong, in words; with the command that shows an image again from the kept log."""
    what = f"{case.mode} {case.workload} seed {case.seed}"
    findings = [f"{what}: {problem}" for problem in told["problems"]]
    for image, texts in told["findings"]:
        again = json.dumps(case._replace(only=image, log=told["log"]))
        findings.append(
            f"{what}, image {image}: {'; '.join(texts)}"
            f" (again: PYTHONPATH=tests python -m crash.trial '{again}')"
        )
    return findings
