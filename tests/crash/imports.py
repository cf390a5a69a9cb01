"""Imports of another program's store while the power fails: a verb, as in ``verbs``.

A source holds what was imported before, and one conversation more: it is run again and again, as
by somebody whose import was interrupted. What is there is compared, and only the new one is stored.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from memcore import importing
from memcore.importing import Reading, load

from .verbs import Place, Step, appended, messages, verb

IMPORTED = "i"
"""How the names of imported sessions begin."""


def load_from(place: Place, reading: Reading) -> None:
    """Import; everything has to be stored, or to be there."""
    report = load(place.db, reading)
    if report.failures or report.conversations != 1:
        raise AssertionError(f"the workload wanted one new conversation, but: {report}")


@verb(appended)
def bring_in(place: Place, step: Step) -> None:
    """``bring_in name size...``: a conversation of a source whose others were imported before."""
    name, *sizes = step.arguments
    owner = {"app": "default", "user": place.lane}
    known = [
        each.session_id
        for each in place.db.sessions(user=place.lane)
        if each.session_id.startswith(IMPORTED)
    ]
    rows = [
        {"id": each, "messages": [item.message for item in place.session(each)]} for each in known
    ]
    rows.append({"id": name, "messages": messages(step, sizes)})
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "source.jsonl"
        source.write_text("\n".join(map(json.dumps, rows)))
        load_from(place, importing.read("json", source, **owner))
