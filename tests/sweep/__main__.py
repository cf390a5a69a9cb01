"""``python -m tests.sweep [PRESET ...] [--histories N]``: policies over random histories.

Every history is compacted twice by each preset, by a random stage and a summarizer that may fail,
and asked for contexts at random budgets under the pair policies of all providers in turn. The first
broken context ends it with the seed that makes it again: ``--only PRESET-NUMBER``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path


def main() -> None:
    """Parse the command line and run."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # what tests share
    import logging

    import memcore

    logging.disable(logging.WARNING)  # half of the summarizers fail on purpose

    from .trial import trial

    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("presets", nargs="*", metavar="PRESET", default=list(memcore.PRESETS))
    parser.add_argument("--histories", type=int, default=20_000, help="for each preset")
    parser.add_argument("--only", metavar="PRESET-NUMBER", help="one history again")
    options = parser.parse_args()
    if options.only:
        preset, number = options.only.rsplit("-", 1)
        with memcore.open(":memory:") as db:
            sys.stdout.write(f"{trial(db, preset, int(number))}\n")
        return
    for preset in options.presets:
        began, total = time.monotonic(), Counter[str]()
        for first in range(0, options.histories, 500):
            with memcore.open(":memory:") as db:
                for number in range(first, min(first + 500, options.histories)):
                    try:
                        total.update(trial(db, preset, number))
                    except Exception:
                        sys.stderr.write(f"broken: --only {preset}-{number}\n")
                        raise
                assert db.check() == []
        took = time.monotonic() - began
        counts = ", ".join(f"{count:,} {name}" for name, count in total.items())
        sys.stdout.write(f"{preset}: {options.histories:,} histories, {counts}, {took:.0f} s\n")
        sys.stdout.flush()


main()
