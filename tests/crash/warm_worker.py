"""A process that appends to one session of a file with a warm copy, and says what is where."""

from __future__ import annotations

import random
from pathlib import Path

import memcore
from memcore.database import warm


def run(path: str, address: str, ledger: Path, name: str, *, seed: int, ship: str) -> None:
    """Append numbers; note ``A number`` when one is stored, ``S number`` when it is shipped.

    With ``"sync"`` both are one.
    """
    chance = random.Random(seed)
    warm.INTERVAL_SECONDS, warm.WAITING_SECONDS, warm.PAUSE_SECONDS_MAX = 0.02, 0.1, 0.3
    warm.SYNC_SECONDS = 2.0
    with memcore.open(path, warm=address, ship=ship) as db, ledger.open("a", buffering=1) as notes:
        session = db.session(name)
        number = session.seen_revision() or len(list(session.items()))
        while True:
            size = chance.choice([10, 10, 400, 3000])
            try:
                session.append({"role": "user", "content": f"{number} " + "x" * size})
            except memcore.UnshippedError:
                pass
            else:
                notes.write(f"S {number}\n" if ship == "sync" else "")
            notes.write(f"A {number}\n")
            if ship == "async" and chance.random() < 0.2:
                try:
                    db.ship(timeout_seconds=chance.choice([0.05, 2.0]))
                except memcore.StorageError:
                    pass  # the server is away: it is shipped later
                else:
                    notes.write(f"S {number}\n")
            number += 1


def main(given: list[str]) -> None:
    """Run with the arguments of a command line."""
    path, address, ledger, name, seed, ship = given
    run(path, address, Path(ledger), name, seed=int(seed), ship=ship)
