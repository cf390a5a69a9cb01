"""Worker of the chaos test of a store on a server: appends, and writes down what it is told.

Usage: python -m tests.crash.server_worker ADDRESS LEDGER NUMBER SEED

Each line of the ledger is ``begun ID SESSION``, ``stored ID SESSION SEQ`` or ``refused ID``; what
has begun and has no other line is a call whose outcome the worker does not know. Some sessions are
written under leases alone: an ID there names the lease's owner and epoch.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from typing import TextIO

import memcore
from memcore.errors import (
    FencedError,
    LeaseHeldError,
    MemcoreError,
    OutcomeUnknownError,
    RevisionConflict,
    StorageError,
)

SESSIONS = 4
LEASED = 2
THREADS = 3
LEASING_THREADS = 2


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
            threading.Thread(
                target=run if n < THREADS else run_leasing,
                args=(db, out, f"{number}.{n}", seed + n),
            )
            for n in range(THREADS + LEASING_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def run(db: memcore.Database, out: TextIO, name: str, seed: int) -> None:
    """Append for ever; it ends with its process."""
    chance = random.Random(seed)
    sessions = [db.session(f"s{n}", user="u") for n in range(SESSIONS)]
    count = 0
    while True:
        append(chance.choice(sessions), f"{os.getpid()}.{name}.{count}", out, chance)
        count += 1


def run_leasing(db: memcore.Database, out: TextIO, name: str, seed: int) -> None:
    """Take leases, now and then by force, and append under them for ever."""
    chance = random.Random(seed)
    sessions = [db.session(f"l{n}", user="u") for n in range(LEASED)]
    owner = f"{os.getpid()}.{name}"
    count = 0
    while True:
        session, seconds = chance.choice(sessions), chance.uniform(0.05, 2.0)
        try:
            lease = session.lease(owner, ttl_seconds=seconds, force=chance.random() < 0.05)
        except MemcoreError:  # another's, or the server is away
            threading.Event().wait(0.05)
            continue
        for _ in range(chance.randrange(1, 40)):
            append(session, f"{owner}@{lease.epoch}.{count}", out, chance)
            count += 1
            try:
                if chance.random() < 0.1:
                    lease.renew()
            except FencedError:
                break
            except MemcoreError:
                continue
        try:
            if chance.random() < 0.7:
                lease.release()
        except MemcoreError:
            continue


def append(session: memcore.Session, item: str, out: TextIO, chance: random.Random) -> None:
    """Append one item, and write down what became of it."""
    key = item if chance.random() < 0.5 else None
    out.write(f"begun {item} {session.id}\n")
    try:
        seq = stored_at(session, item, key, chance)
        out.write(f"stored {item} {session.id} {seq}\n")
    except (RevisionConflict, FencedError, LeaseHeldError):
        out.write(f"refused {item}\n")
    except OutcomeUnknownError:
        pass
    except MemcoreError as error:
        out.write(f"failed {item} {type(error).__name__}\n")
        threading.Event().wait(0.05)


def stored_at(session: memcore.Session, item: str, key: str | None, chance: random.Random) -> int:
    """Append; with a key, repeat what may not have been stored. Returns the seq."""
    message = {"role": "user", "content": item}
    expected = session.revision if chance.random() < 0.2 else None
    is_known = True
    for _ in range(5 if key else 1):
        try:
            receipt = session.append(message, idempotency_key=key, expected_revision=expected)
        except OutcomeUnknownError:
            if key is None:
                raise
            expected, is_known = None, False
        except (FencedError, LeaseHeldError) as error:
            if is_known:
                raise
            # The first attempt may be stored: its lease was lost behind it.
            raise OutcomeUnknownError(item) from error
        else:
            return receipt.seq
    raise OutcomeUnknownError(item)


if __name__ == "__main__":
    main()
