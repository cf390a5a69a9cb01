"""What is going on when the power fails. A workload is a generator of operations; see ``verbs``.

To add one: write a generator that takes a ``Lane`` and yields operations, and declare how many
threads and processes run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from . import erasures as _erasures  # noqa: F401 - registers its verb
from . import expiries as _expiries  # noqa: F401 - registers its verbs
from . import frameworks as _frameworks  # noqa: F401 - as above
from . import graphs as _graphs  # noqa: F401 - as above
from . import imports as _imports  # noqa: F401 - as above
from . import leases as _leases  # noqa: F401 - as above
from . import lines as _lines  # noqa: F401 - as above
from . import memories as _memories  # noqa: F401 - as above
from . import quarantines as _quarantines  # noqa: F401 - as above
from . import redactions as _redactions  # noqa: F401 - as above
from . import sealed as _sealed  # noqa: F401 - as above
from . import services as _services  # noqa: F401 - as above
from .verbs import State

Operation = tuple[Any, ...]
KIB = 1024


class Lane(NamedTuple):
    """What a workload may look at: its chances, and its own state after what it did so far."""

    name: str
    rng: Random
    state: State

    def live(self, name: str) -> int:
        """Items in a session of the lane."""
        return len(self.state.get(f"s/{name}", ()))


class Workload(NamedTuple):
    """A declared workload: every process runs ``threads`` lanes of it.

    ``watched``: another process has the file open and reads; not if the workload wants it alone.
    """

    name: str
    lane: Callable[[Lane], Iterator[Operation]]
    threads: int = 1
    processes: int = 1
    kills: int = 0
    map_bytes: int = 64 * 1024**2
    flush_us: int = 700
    watched: bool = True
    audited: bool = False
    sealed: bool = False
    """Only of an encrypted file."""
    guarded: bool = False
    """The file demands a guard that puts suspicious items aside."""
    life: int = 300
    """Records that a process writes at most before it is killed, if any is."""


WORKLOADS: dict[str, Workload] = {}


def workload(**options: int) -> Callable[..., Any]:
    """Register a generator under its name."""

    def register(lane: Callable[[Lane], Iterator[Operation]]) -> Callable[..., Any]:
        name = lane.__name__
        WORKLOADS[name] = Workload(name, lane, **options)
        return lane

    return register


@workload()
def creation(lane: Lane) -> Iterator[Operation]:
    """The first moments of a file."""
    yield "append", "first", 100
    yield "put", "key", 100


@workload()
def sessions(lane: Lane) -> Iterator[Operation]:
    """Many sessions, small items and some of 40 KB."""
    for _ in range(70):
        sizes = [lane.rng.choice((20, 300, 2000, 6000)) for _ in range(lane.rng.randint(1, 4))]
        if lane.rng.random() < 0.15:
            sizes.append(40 * KIB)
        yield "append", f"s{lane.rng.randrange(12)}", *sizes


@workload()
def large(lane: Lane) -> Iterator[Operation]:
    """Transactions larger than a redo slot, staged items and blobs, small ones in between."""
    for turn in range(9):
        yield "append", "small", 200
        if turn % 3 == 0:
            yield "append", "large", *[30 * KIB] * 10
        elif turn % 3 == 1:
            yield "append", "large", 300 * KIB, 100
        else:
            yield "blob", lane.rng.choice((90 * KIB, 260 * KIB))
        yield "put", "fact", 300
        if turn % 4 == 3:
            yield "undo", "large", lane.live("large") // 2
            yield ("collect",)


@workload()
def undoing(lane: Lane) -> Iterator[Operation]:
    """Items that are taken back, and others in their place."""
    for _ in range(30):
        yield "append", "s", *[lane.rng.choice((50, 1500))] * lane.rng.randint(1, 5)
        if lane.rng.random() < 0.5:
            yield "undo", "s", lane.rng.randrange(lane.live("s"))


@workload()
def compaction(lane: Lane) -> Iterator[Operation]:
    """Summaries that come and go."""
    for turn in range(14):
        yield "append", "s", *[200] * 6
        yield "compact", "s"
        if turn % 4 == 3:
            yield "uncompact", "s"


@workload()
def masking(lane: Lane) -> Iterator[Operation]:
    """Views that mask items, each on top of the one before, and some that are taken back."""
    for turn in range(14):
        yield "append", "s", *[400] * lane.rng.randint(1, 6)
        yield "mask", "s"
        if turn % 4 == 3:
            yield "uncompact", "s"


@workload()
def forks(lane: Lane) -> Iterator[Operation]:
    """Branches, rewinds, and origins that are deleted while forks still share their rows."""
    yield "append", "f0", *[300] * 5
    for turn in range(1, 16):
        origin = f"f{turn - 1}"
        yield "fork", origin, f"f{turn}", lane.rng.randint(1, lane.live(origin))
        yield "append", f"f{turn}", 400, 500, 600
        if turn % 3 == 0:
            yield "rewind", origin, lane.rng.randrange(lane.live(origin) + 1)
        if turn % 4 == 0:
            yield "delete", f"f{turn - 2}"


@workload()
def checkpoints(lane: Lane) -> Iterator[Operation]:
    """Saved positions that are gone back to and forked at, beside undos, summaries, recounts."""
    yield "append", "s0", *[300] * 6
    name = "s0"
    for turn in range(1, 16):
        yield "checkpoint", name, f"c{turn % 3}"
        yield "undo", name, lane.rng.randrange(lane.live(name))
        sizes = [lane.rng.choice((80, 900, 6000))] * lane.rng.randint(6, 9)
        yield "note" if turn % 2 else "append", name, *sizes
        yield "checkpoint", name, "end"
        if turn % 3 == 1:
            yield "compact", name
        if turn % 5 == 2:
            yield "recount", name, f"bytes/{turn % 3 + 5}"
        labels = sorted({label for label, *_ in lane.state[f"p/{name}"]})
        yield "rewind_to", name, lane.rng.choice(labels)
        if turn % 4 == 3:
            yield "fork_at", name, f"s{turn}", lane.rng.choice(labels)
            yield "append", f"s{turn}", 400
            yield "unsave", name, lane.rng.choice(labels)
            if turn % 8 == 7:
                yield "delete", name
            name = f"s{turn}"


@workload()
def usage(lane: Lane) -> Iterator[Operation]:
    """Reports of what a provider billed, beside appends, forks and deletions."""
    for turn in range(20):
        yield "append", f"s{turn % 3}", *[lane.rng.choice((80, 900))] * 2
        yield "report", f"s{turn % 3}"
        if turn % 5 == 4:
            yield "fork", f"s{turn % 3}", f"f{turn}", lane.live(f"s{turn % 3}") - turn % 2
        if turn % 7 == 6:
            yield "delete", f"s{lane.rng.randrange(3)}"


@workload()
def envelopes(lane: Lane) -> Iterator[Operation]:
    """Items with envelopes, and counts of who read them."""
    for turn in range(16):
        yield "envelop", f"e-{turn % 2}", *[lane.rng.choice((60, 2000))] * lane.rng.randint(1, 3)
        if turn % 5 == 4:
            yield "undo", f"e-{turn % 2}", lane.live(f"e-{turn % 2}") - 1
        if turn % 9 == 8:
            yield "delete", f"e-{turn % 2}"


@workload()
def notes(lane: Lane) -> Iterator[Operation]:
    """Items together with the state, whose old values are trimmed; forks, undos, deletions."""
    for turn in range(20):
        name = f"s{turn % 3}"
        yield "note", name, *[lane.rng.choice((60, 2000))] * lane.rng.randint(1, 3)
        if turn % 4 == 3:
            yield "undo", name, lane.live(name) - 1
            yield "trim", name
        if turn % 5 == 4:
            yield "fork", name, f"f{turn}", max(lane.live(name) - 1, 0)
            yield "note", f"f{turn}", 100
        if turn % 7 == 6:
            yield "delete", f"s{lane.rng.randrange(3)}"


@workload(processes=2, kills=4)
def deltas(lane: Lane) -> Iterator[Operation]:
    """Items with what they change of all states; rewinds and forks that take the state along."""
    for turn in range(12):
        name = f"m{turn % 2}"
        yield "delta", name, *[lane.rng.choice((60, 900))] * lane.rng.randint(1, 3)
        if turn % 3 == 1:
            yield "append", name, 50
            yield "back", name, lane.rng.randrange(lane.live(name))
        if turn % 4 == 3:
            yield "fork_back", name, f"mf{turn}", lane.rng.randrange(lane.live(name) + 1)
            yield "delta", f"mf{turn}", 100
        if turn % 6 == 5:
            yield "delete", name


@workload()
def recounting(lane: Lane) -> Iterator[Operation]:
    """Sessions and their forks that change their counters, and go."""
    yield "append", "s0", *[300] * 40
    for turn in range(1, 10):
        name = f"s{turn - 1}"
        yield "recount", name, f"bytes/{turn % 3 + 5}"
        yield "append", name, 400, 5000
        yield "fork", name, f"s{turn}", lane.rng.randint(1, lane.live(name))
        yield "undo", name, lane.rng.randrange(lane.live(name))
        if turn % 3 == 2:
            yield "recount", name, "bytes/2"
            yield "delete", f"s{turn - 2}"


def _searched(lane: Lane, turn: int) -> Iterator[Operation]:
    """What changes the sessions, and the index that follows them."""
    name = f"z-{turn % 4}"
    yield "append", name, *[lane.rng.choice((100, 900))] * lane.rng.choice((1, 3, 20))
    if turn % 3 == 1:
        yield ("index",)
    if turn % 5 == 2:
        yield "find", name
    if turn % 4 == 3 and lane.live(name) > 1:
        yield "undo", name, lane.rng.randint(1, lane.live(name) - 1)
    if turn % 6 == 4:
        yield "fork", name, f"z-f{turn}", lane.rng.randint(1, lane.live(name))
        yield "append", f"z-f{turn}", 200
    if turn % 7 == 5:
        yield "delete", name
    if turn % 11 == 9:
        yield ("reindex",)


@workload()
def searches(lane: Lane) -> Iterator[Operation]:
    """An index that follows sessions which grow, are cut back, forked and deleted."""
    for turn in range(26):
        yield from _searched(lane, turn)


@workload(threads=2, processes=2, kills=6)
def search_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed between the commits of an index."""
    for turn in range(14):
        yield from _searched(lane, turn)


@workload()
def deletion(lane: Lane) -> Iterator[Operation]:
    """Sessions that go, and their pages that are used again."""
    for turn in range(40):
        yield "append", f"s{turn % 5}", *[lane.rng.choice((100, 3000, 20 * KIB))] * 3
        if turn % 5 == 4:
            yield "delete", f"s{lane.rng.randrange(5)}"


@workload()
def graphs(lane: Lane) -> Iterator[Operation]:
    """Threads of graphs: checkpoints, writes, prunes, copies and deletions; some values staged."""
    for turn in range(14):
        name = f"g{turn % 3}"
        sizes = [lane.rng.choice((20, 400, 3000)) for _ in range(lane.rng.randint(1, 4))]
        if lane.rng.random() < 0.15:
            sizes.append(lane.rng.choice((90, 200)) * KIB)
        yield "advance", name, *sizes
        if turn % 2:
            yield "pend", name, 20, lane.rng.choice((500, 3000))
        if turn % 5 == 4:
            yield "shorten", name, 3
        if turn % 6 == 5:
            yield "copy", name, f"t{turn}"
            yield "advance", f"t{turn}", 700
        if turn % 4 == 3:
            yield "prune", name, lane.rng.randint(1, 2)
        if turn % 9 == 8:
            yield "forget", f"g{lane.rng.randrange(3)}"
            yield "blob", 90 * KIB
            yield ("collect",)


@workload(processes=2, kills=6)
def graph_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed while they put, prune, copy and delete threads."""
    for turn in range(12):
        yield "advance", "own", *[lane.rng.choice((30, 900, 9000))] * lane.rng.randint(1, 3)
        if turn % 3 == 1:
            yield "prune", "own", 1
        if turn % 4 == 2:
            yield "copy", "own", f"twin{turn}"
            yield "advance", "own", 140 * KIB
            yield "forget", f"twin{turn}" if turn % 8 == 2 else "own"


@workload(threads=2)
def services(lane: Lane) -> Iterator[Operation]:
    """Items with changes of three states, versions of artifacts, ends of sessions replaced."""
    for turn in range(14):
        name = f"s{turn % 3}"
        yield "tell", name, *[lane.rng.choice((60, 900, 5000))] * lane.rng.randint(1, 3)
        size = lane.rng.choice((40, 2000, 2000, 90 * KIB, 220 * KIB))
        yield "publish", f"f{turn % 2}", f"l{lane.rng.randrange(3)}", size
        sizes = [lane.rng.choice((50, 700, 9000))] * lane.rng.randint(1, 4)
        if turn % 6 == 5:
            sizes.append(300 * KIB)
        yield "replace", name, lane.rng.randrange(lane.live(name)), *sizes
        if turn % 5 == 4:
            yield "withdraw", f"f{lane.rng.randrange(2)}"
            yield "fork", name, f"f{turn}", lane.live(name)
            yield "tell", f"f{turn}", 100
        if turn % 6 == 5:
            yield "delete", name
            yield ("collect",)


@workload(threads=2, processes=2, kills=6)
def service_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed while they change states, artifacts and the ends of sessions."""
    for turn in range(8):
        yield "tell", "own", *[lane.rng.choice((50, 3000))] * 2
        yield "publish", "file", f"l{turn % 3}", lane.rng.choice((500, 60 * KIB, 210 * KIB))
        yield "replace", "own", lane.rng.randrange(lane.live("own")), 400, 500
        if turn % 4 == 3:
            yield "withdraw", "file"


@workload()
def expiries(lane: Lane) -> Iterator[Operation]:
    """Items, keys and sessions whose time has come, forks that share them, appends between."""
    for turn in range(14):
        name = f"s{turn % 2}"
        sizes = [lane.rng.choice((60, 900, 6000)) for _ in range(lane.rng.randint(2, 5))]
        if turn % 4 == 1:
            sizes.append(40 * KIB)
        yield "append", name, *sizes
        if turn % 3 == 1:
            yield "fork", name, f"f{turn}", lane.live(name)
        if turn % 2:
            yield "expire", name, lane.rng.randrange(lane.live(name))
            yield "lend", f"k{turn}", 300, f"l{turn}", 3000
        if turn % 4 == 3:
            yield ("lapse",)
        if turn % 5 == 4:
            yield "outlive", name


@workload(kills=4)
def expiry_kills(lane: Lane) -> Iterator[Operation]:
    """A process that is killed while items expire."""
    for _ in range(10):
        yield "append", "own", *[lane.rng.choice((60, 900, 40 * KIB))] * lane.rng.randint(1, 4)
        yield "expire", "own", lane.rng.randrange(lane.live("own"))


@workload()
def facts(lane: Lane) -> Iterator[Operation]:
    """Keys that are put, overwritten and deleted, several in one transaction."""
    for _ in range(60):
        keys = lane.rng.sample([f"k{n}" for n in range(30)], lane.rng.randint(1, 5))
        if lane.rng.random() < 0.25:
            yield "drop", *keys
        else:
            sizes = [lane.rng.choice((10, 500, 3000, 20_000)) for _ in keys]
            yield "put", *[word for pair in zip(keys, sizes, strict=True) for word in pair]


@workload()
def redactions(lane: Lane) -> Iterator[Operation]:
    """Keys whose values are written anew in their place, all in one transaction."""
    for _ in range(30):
        keys = lane.rng.sample([f"k{n}" for n in range(12)], lane.rng.randint(1, 4))
        sizes = [lane.rng.choice((10, 500, 3000)) for _ in keys]
        yield "put", *[word for pair in zip(keys, sizes, strict=True) for word in pair]
        yield ("redo",)


@workload(threads=2, processes=2, kills=8)
def redaction_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed between redactions and the counts that follow from them."""
    for turn in range(8):
        name = f"s{turn % 2}"
        sizes = [lane.rng.choice((400, 900, 6000)) for _ in range(lane.rng.randint(5, 7))]
        yield "append", name, *sizes
        names = [name]
        if turn % 4 == 1:  # what was compacted is not forked before its summary
            names.append(f"{name}-f{turn}")
            yield "fork", name, names[-1], lane.rng.randint(1, lane.live(name))
            yield "append", names[-1], 300
        yield "compact", name
        yield "redact", name
        for size in (100, 900, 3000):  # so that much happens in between
            yield "put", "fact", size
        if turn % 3 == 2:
            yield "append", name, 200
        for each in lane.rng.sample(names, len(names)):
            yield "count_anew", each
        if turn in (3, 4):
            yield "delete", name


@workload(threads=4)
def threads(lane: Lane) -> Iterator[Operation]:
    """Group commit: several threads, in sessions of their own and in one that they share."""
    for _ in range(18):
        yield "append", "own", *[lane.rng.choice((50, 900, 9000))] * lane.rng.randint(1, 3)
        yield "share", 200
        yield "put", "fact", 100


@workload(threads=2)
def backups(lane: Lane) -> Iterator[Operation]:
    """Copies of the file while another thread writes."""
    for turn in range(12):
        yield "append", "s", *[lane.rng.choice((100, 4000))] * 3
        if turn % 4 == 2 and lane.name.endswith(".0"):
            yield "backup", f"copy{turn}", turn % 8 == 2


@workload(map_bytes=1024**2)
def growth(lane: Lane) -> Iterator[Operation]:
    """A map that is too small again and again."""
    for turn in range(24):
        yield "append", f"s{turn % 3}", *[25 * KIB] * lane.rng.randint(1, 7)


@workload(threads=2, processes=3, kills=12)
def kills(lane: Lane) -> Iterator[Operation]:
    """Three processes that are killed at any record, and come again, until the power fails."""
    for _ in range(25):
        yield "share", lane.rng.choice((50, 2000))
        yield "append", "own", *[lane.rng.choice((50, 900, 30_000))] * lane.rng.randint(1, 2)
        if lane.rng.random() < 0.3:
            yield "put", "fact", 100, "other", 5000
        if lane.rng.random() < 0.05:
            yield "append", "large", *[30 * KIB] * 9


@workload(threads=2, processes=2, kills=4, audited=True)
def audited(lane: Lane) -> Iterator[Operation]:
    """Chained writes of all sorts, anchored every few entries by processes that are killed."""
    for turn in range(4):
        yield "share", lane.rng.choice((50, 2000))
        yield "note", "own", *[lane.rng.choice((50, 900, 40 * KIB))] * lane.rng.randint(1, 2)
        if turn % 3 == 1:
            yield "undo", "own", lane.live("own") - 1
            yield "put", "fact", 100, "other", 5000
        if turn == 2:
            yield "fork", "own", f"f{turn}", lane.live("own")
            yield "append", f"f{turn}", 300
        if turn == 3:
            yield "drop", "fact"
            yield "delete", f"f{turn - 1}"


@workload(threads=2, watched=False)
def squeezing(lane: Lane) -> Iterator[Operation]:
    """The file is swapped for a compact copy while another thread writes."""
    for turn in range(10):
        yield "append", f"s{turn % 3}", *[lane.rng.choice((100, 9000))] * 3
        if turn % 3 == 1 and lane.name.endswith(".0"):
            yield ("squeeze",)
        if turn % 4 == 3:
            yield "delete", f"s{turn % 3}"


@workload(threads=2, watched=False)
def erasing(lane: Lane) -> Iterator[Operation]:
    """A user is erased twice, and the bytes of one erasure wait; another user writes meanwhile.

    A value of a page, written soon after small ones, has remains of these in the page's rest: LMDB
    takes the memory of one for the other.
    """
    compacts = lane.rng.sample((True, False), 2)
    for turn in range(8):
        sizes = lane.rng.sample((100, 900, 9000), 2)
        yield "append", f"s{turn % 2}", *[100] * 6, *sizes
        yield "put", f"k{turn % 3}", 300, f"page{turn}", 2500
        if turn % 4 == 1:
            yield "append", "large", 300 * KIB
        if turn in (2, 4) and lane.name.endswith(".0"):
            yield "erase", compacts[turn // 4]


@workload(threads=2, processes=2, kills=8)
def erasing_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that erase users are killed; the file is open elsewhere, so bytes wait."""
    for turn in range(12):
        yield "append", "own", *[lane.rng.choice((50, 900, 30_000))] * lane.rng.randint(1, 3)
        yield "put", "fact", 100, "other", 5000
        if turn % 4 == 3 and lane.rng.random() < 0.7:
            yield "erase", lane.rng.random() < 0.5


@workload(processes=2, kills=8, life=60)
def creation_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed while they make the file, and what it is kept with."""
    yield "append", "first", 100
    yield "put", "key", 100


@workload(threads=2, sealed=True)
def rotations(lane: Lane) -> Iterator[Operation]:
    """Both kinds of keys are changed while another thread writes and users come."""
    first = lane.name.endswith(".0")
    for turn in range(9):
        yield "append", f"s{turn % 3}", *[lane.rng.choice((50, 900, 9000))] * 3
        if turn == 4:
            yield "append", "large", 300 * KIB, 100
            yield "blob", 120 * KIB
        yield "note", "n", 60
        yield "put", f"k{turn % 3}", 300, "other", 5000
        if first and turn % 2:
            yield ("reseal",)
        if first and turn % 3 == 2:
            yield "rekey", turn
            yield "fork", "n", f"f{turn}", lane.live("n")
        if turn == 6:
            yield "delete", "s1"
            yield ("collect",)


@workload(threads=2, processes=2, kills=8, sealed=True)
def rotation_kills(lane: Lane) -> Iterator[Operation]:
    """Processes that are killed while keys are changed, and come again as new users."""
    first = lane.name.startswith("0.") and lane.name.endswith(".0")
    for turn in range(8):
        yield "append", "own", *[lane.rng.choice((50, 900, 30_000))] * lane.rng.randint(1, 3)
        yield "share", 200
        if first:
            yield ("reseal",)
        if first and turn % 3 == 1:
            yield "rekey", lane.rng.randrange(2)
        yield "put", "fact", 100, "other", 5000


@workload(threads=2, watched=False, sealed=True)
def shredding(lane: Lane) -> Iterator[Operation]:
    """A user is erased again and again while all keys are changed and the file is squeezed."""
    first = lane.name.endswith(".0")
    for turn in range(8):
        yield "append", f"s{turn % 2}", *[lane.rng.choice((100, 900, 9000))] * 3
        yield "put", f"k{turn % 3}", 300
        if first and turn % 3 == 2:
            yield "erase", lane.rng.random() < 0.7
        if first and turn % 3 == 1:
            yield ("reseal",)
        if not first and turn == 4:
            yield "rekey", 1
        if first and turn == 5:
            yield ("squeeze",)


@workload(threads=2, watched=False, sealed=True)
def keepsakes(lane: Lane) -> Iterator[Operation]:
    """Backups that are older than erasures, and are opened beside the key file of later."""
    first = lane.name.endswith(".0")
    for turn in range(9):
        yield "append", f"s{turn % 2}", *[lane.rng.choice((100, 900, 9000))] * 2
        yield "put", f"k{turn % 3}", 300
        if turn == (1 if first else 4):  # the erased user's own is always older than an erasure
            yield "backup", f"copy{turn}", turn == 1
        if first and turn % 3 == 2:
            yield "erase", turn == 5
        if not first and turn == 6:
            yield "rekey", 1


@workload(threads=2, processes=2, kills=6)
def leases(lane: Lane) -> Iterator[Operation]:
    """Leases that are taken over, renewed and given up by processes that are killed."""
    for turn in range(10):
        name = f"s{turn % 2}"
        yield "take", name, f"worker {turn}"
        yield "under_lease", name, *[lane.rng.choice((60, 900, 40 * KIB))] * 2
        if turn % 3 == 1:
            yield "renew", name
        if turn % 4 == 2:
            yield "give_up", name
            yield "append", name, 300


@workload(threads=2, processes=2, kills=6)
def imports(lane: Lane) -> Iterator[Operation]:
    """A source that grows and is imported again and again, by processes that are killed."""
    for turn in range(7):
        sizes = [lane.rng.choice((60, 900, 9000)) for _ in range(lane.rng.randint(2, 5))]
        if turn % 3 == 2:
            sizes.append(40 * KIB)
        yield "bring_in", f"i{turn}", *sizes
        yield "append", f"s{turn % 2}", 200


@workload(threads=2, processes=2, kills=6, guarded=True)
def quarantines(lane: Lane) -> Iterator[Operation]:
    """Items that are put aside, released and dropped; sessions that go with what is put aside."""
    for turn in range(9):
        name = f"q{turn % 3}"
        yield "append", name, 200
        yield "suspect", name, *[lane.rng.choice((60, 900, 40 * KIB))] * lane.rng.randint(1, 3)
        waiting = len(lane.state[f"q/{name}"])
        yield "release", name, lane.rng.randrange(waiting)
        if waiting > 1 and turn % 2:
            yield "discard", name, lane.rng.randrange(waiting - 1)
        if turn % 4 == 1:
            yield "fork", "q0", f"q0-{turn}", lane.live("q0")
        if turn % 3 == 2:
            yield "delete", name


@workload(threads=2, processes=2, kills=6)
def memories(lane: Lane) -> Iterator[Operation]:
    """Memories that are stated, corrected, forgotten, and that go with their session."""
    for turn in range(12):
        name, size = f"f{turn % 3}", lane.rng.choice((60, 900, 12 * KIB))
        yield "state_fact", name, size
        for _ in range(lane.rng.randrange(3)):
            yield "correct", name, lane.rng.choice((60, 900))
        if turn % 4 == 3:
            yield "forget_fact", name
        chat = f"s{turn % 2}"
        yield "append", chat, 200
        yield "learn", chat, lane.rng.choice((60, 3000))
        if turn % 3 == 1:
            yield "restate", chat
            yield "unite", chat
        if turn % 3 != 2:
            yield "summarize", chat
        if turn % 5 == 4:
            yield "unlearn", chat
        told = f"t{turn % 2}"
        yield "append", told, *[lane.rng.choice((60, 900))] * lane.rng.randint(1, 3)
        if turn % 3:
            yield "extract", told
        if turn == 7:
            yield "unlearn", told


@workload(threads=2, processes=2, kills=6)
def embeddings(lane: Lane) -> Iterator[Operation]:
    """Memories and items that are embedded while others are corrected, forgotten and deleted."""
    for turn in range(10):
        name, chat = f"f{turn % 3}", f"s{turn % 2}"
        yield "state_fact", name, lane.rng.choice((60, 900, 12 * KIB))
        yield "append", chat, *[lane.rng.choice((60, 900))] * lane.rng.randint(1, 3)
        yield "learn", chat, lane.rng.choice((60, 900))
        if turn % 2:
            yield ("embed_all",)
        if turn % 3:
            yield "correct", name, lane.rng.choice((60, 900))
        if turn % 4 == 3:
            yield "forget_fact", name
        if turn % 5 == 4:
            yield "unlearn", chat
        if turn == 6:
            yield ("reindex",)


@workload(threads=2, processes=2, kills=6)
def grants(lane: Lane) -> Iterator[Operation]:
    """Views of a memory that are given to others, revoked and declined, beside its changes."""
    given: set[str] = set()
    for turn in range(16):
        name = f"g{turn % 3}"
        if name in given:
            given.remove(name)
            yield "end_grant", name
        else:
            given.add(name)
            yield "give_grant", name, lane.rng.choice(("fact", "note", "event"))
        if turn % 3 == 0:
            yield "state_fact", f"f{turn % 2}", lane.rng.choice((60, 900))


@workload(threads=2)
def invocations(lane: Lane) -> Iterator[Operation]:
    """Events of ADK in two rows each; invocations that are deleted with what they left."""
    for turn in range(5):
        for at in range(lane.rng.randint(1, 2)):
            size = lane.rng.choice((60, 900, 40 * KIB, 300 * KIB))
            yield "utter", "s", f"i{turn if at == 0 else max(turn - 1, 0)}", size
        if turn % 2:
            invocations = [each for each, _ in lane.state["i/s"]]
            last = invocations[
                -1
            ]  # goes once with what it left in the state, whatever the dice say
            yield "retract", "s", last if turn == 1 else lane.rng.choice(sorted(set(invocations)))


@workload(threads=2)
def waiting_runs(lane: Lane) -> Iterator[Operation]:
    """Runs of the OpenAI Agents SDK that wait behind their items; sessions that lose old ones."""
    for turn in range(8):
        name = f"s{turn % 2}"
        yield "converse", name, *[lane.rng.choice((60, 900, 9000))] * lane.rng.randint(1, 3)
        size = lane.rng.choice((60, 900, 40 * KIB, 300 * KIB))
        yield "wait_for", name, *[size] * lane.rng.randint(1, 2)
        if turn % 3 == 2:
            yield "age", name, lane.rng.randint(1, len(lane.state[f"j/{name}"]))


@workload(threads=2)
def tasks(lane: Lane) -> Iterator[Operation]:
    """Tasks of A2A that grow, large ones too, and are deleted."""
    for turn in range(10):
        name = f"t{turn % 3}"
        sizes = [
            lane.rng.choice((60, 900, 40 * KIB, 90 * KIB)) for _ in range(lane.rng.randint(1, 4))
        ]
        yield "save_task", name, *sizes
        if turn % 4 == 3:
            yield "drop_task", f"t{lane.rng.randrange(3)}"


@workload(threads=2)
def lines(lane: Lane) -> Iterator[Operation]:
    """Lines of adapters with their rows, amended, and removed from the file; large ones too."""
    for turn in range(10):
        name = f"a{turn % 2}"
        sizes = [
            lane.rng.choice((60, 900, 20 * KIB, 60 * KIB)) for _ in range(lane.rng.randint(1, 3))
        ]
        yield "jot", name, *sizes
        if turn % 3 == 1:
            yield "amend", name, lane.rng.choice((60, 900, 20 * KIB))
        if turn % 4 == 3:
            yield "strike", name, lane.rng.randint(1, len(lane.state[f"l/{name}"]))


@workload(threads=2, processes=2, kills=6)
def delegations(lane: Lane) -> Iterator[Operation]:
    """Calls that another agent answers; processes are killed between the call and its answer."""
    for turn in range(8):
        name = f"s{turn % 2}"
        yield "ask", name
        yield "entrust", name
        yield "answer", name, lane.rng.choice((60, 900, 40 * KIB))
