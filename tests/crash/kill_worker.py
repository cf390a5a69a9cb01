"""A writing process of the kill loop: threads that work on their ledgers until stdin ends."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from random import Random

from .ledgers import Ledger
from .sealed import open_any

RESEALS = 0.02
"""How often a step is followed by a rotation of the data keys of an encrypted file."""


def main() -> None:
    path, folder, name, threads, map_bytes, seed, *sealed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.getLogger("memcore").setLevel(logging.ERROR)  # short chats refuse a summary
    db = open_any(Path(path), sealed=sealed == ["1"], map_bytes=int(map_bytes))
    stop = threading.Event()
    failed = threading.Lock()

    def work(number: int) -> None:
        try:
            ledger = Ledger(Path(folder) / f"{name}{number}")
            ledger.open()
            ledger.settle(db)
            random = Random(f"{seed}.{ledger.owner}.{ledger.number}")
            while not stop.is_set():
                ledger.step(db, random)
                if sealed == ["1"] and random.random() < RESEALS:
                    # The others have the file open, so the older keys stay; all goes on.
                    db.rotate_data_keys()
        except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
            failed.acquire()  # for good: one report is enough
            os.write(1, traceback.format_exc().encode())
            os._exit(3)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(int(threads))]
    for worker in workers:
        worker.start()
    sys.stdin.read()
    stop.set()
    for worker in workers:
        worker.join()
    db.close()


if __name__ == "__main__":
    main()
