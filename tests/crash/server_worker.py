"""Worker of the chaos test of a store on a server: appends, and writes down what it is told.

Usage: python -m tests.crash.server_worker ADDRESS LEDGER NUMBER SEED

Each line of the ledger is ``begun ID SESSION``, ``stored ID SESSION SEQ`` or ``refused ID``; what
has begun and has no other line is a call whose outcome the worker does not know.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading

import memcore
from memcore.errors import MemcoreError, OutcomeUnknownError, RevisionConflict, StorageError

SESSIONS = 4
THREADS = 3


def main() -> None:
    address, ledger, number, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it tells of every fault
    db = None
    while db is None:
        try:
            db = memcore.open(address)
        except StorageError:
            threading.Event().wait(0.1)
    with open(ledger, "a", buffering=1, encoding="utf-8") as out:
        threads = [
            threading.Thread(target=run, args=(db, out, f"{number}.{n}", seed + n))
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def run(db: memcore.Database, out: object, name: str, seed: int) -> None:
    """Append for ever; it ends with its process."""
    chance = random.Random(seed)
    sessions = [db.session(f"s{n}", user="u") for n in range(SESSIONS)]
    count = 0
    while True:
        session = chance.choice(sessions)
        item = f"{os.getpid()}.{name}.{count}"
        count += 1
        key = item if chance.random() < 0.5 else None
        out.write(f"begun {item} {session.id}\n")
        try:
            receipt = store(session, item, key, chance)
            out.write(f"stored {item} {session.id} {receipt.seq}\n")
        except RevisionConflict:
            out.write(f"refused {item}\n")
        except OutcomeUnknownError:
            pass
        except MemcoreError as error:
            out.write(f"failed {item} {type(error).__name__}\n")
            threading.Event().wait(0.05)


def store(session: memcore.Session, item: str, key: str | None, chance: random.Random) -> object:
    """Append; with a key, repeat what may not have been stored."""
    message = {"role": "user", "content": item}
    expected = session.revision if chance.random() < 0.2 else None
    for _ in range(5 if key else 1):
        try:
            return session.append(message, idempotency_key=key, expected_revision=expected)
        except OutcomeUnknownError:
            if key is None:
                raise
            expected = None
    raise OutcomeUnknownError(item)


if __name__ == "__main__":
    main()
