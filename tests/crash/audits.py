"""Audited files of the crash harness: their key, their anchor beside them, what is wrong."""

from __future__ import annotations

from pathlib import Path

import memcore

KEY = bytes(range(32))
ANCHOR = "anchor.jsonl"


def audit_beside(path: Path) -> memcore.Audit:
    """An audit that is anchored often, in the directory of the file."""
    return memcore.Audit(key=KEY, anchor=path.with_name(ANCHOR), every_entries=9)


def audit_findings(db: memcore.Database, path: Path) -> list[str]:
    """What the audit of a file, if it has one, has against it; the anchor need not be there yet."""
    if db.engine.audit is None:
        return []
    anchor = path.with_name(ANCHOR)
    report = db.verify_audit(key=KEY, anchor=anchor if anchor.exists() else ())
    return [f"audit: {finding}" for finding in (*report.findings, *report.anchor_problems)]
