"""From a recorded log to what a disk may hold after a power cut.

Of every file there is a durable image, and the changes that no completed flush covers. A crash
image takes the durable one and, of the pending changes, whatever the device and the kernel may have
written by then: blocks survive independently of each other, whole or at a content they had in
between; the size is any that the file had; names are as they were at the last flush of the
directory, or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from .recording import Flag, Op, Record

PAGE_BYTES = 4096
BLOCKS = (4096, 512)
SURVIVAL = (0.0, 0.2, 0.5, 0.8, 0.95, 1.0)


class _Change(NamedTuple):
    """A pending write, or with ``content`` None a new size."""

    number: int
    at: int
    content: bytes | None

    @property
    def size(self) -> int:
        return self.at if self.content is None else self.at + len(self.content)

    def part(self, start: int, stop: int) -> _Change:
        """What it writes between two offsets; nothing, if that is nothing."""
        start, stop = max(start, self.at), min(stop, self.size)
        content = (self.content or b"")[max(0, start - self.at) : max(0, stop - self.at)]
        return _Change(self.number, start if content else self.at, content)


class _Inode:
    """One file: what is durable, and what is not."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.pending: list[_Change] = []
        self.begun: dict[int, int] = {}

    def write(self, number: int, record: Record) -> None:
        self.pending.append(_Change(number, record.at, record.content))
        if record.flags & Flag.DSYNC:
            self._flush_pages(record.at, record.at + len(record.content))

    def _flush_pages(self, start: int, stop: int) -> None:
        """What a synchronous write does: it flushes the pages that it touched, whole."""
        start -= start % PAGE_BYTES
        stop += -stop % PAGE_BYTES
        kept = []
        for change in self.pending:
            if change.content is None:
                kept.append(change)
                continue
            kept += [change.part(change.at, start), change.part(stop, change.size)]
            _apply(self.durable, change.part(start, stop))
        self.pending = [change for change in kept if change.content != b""]

    def flush(self, before: int) -> None:
        for change in self.pending:
            if change.number < before:
                _apply(self.durable, change)
        self.pending = [change for change in self.pending if change.number >= before]

    def present(self) -> bytes:
        image = bytearray(self.durable)
        for change in self.pending:
            _apply(image, change)
        return bytes(image)

    def crashed(self, rng: Random) -> bytes:
        """What the device may hold now."""
        image = bytearray(self.durable)
        if not self.pending:
            return bytes(image)
        size = self._size(rng)
        block, survival = rng.choice(BLOCKS), rng.choice(SURVIVAL)
        for pieces in _by_block(self.pending, block).values():
            if rng.random() < survival:
                count = len(pieces) if rng.random() < 0.5 else rng.randint(1, len(pieces))
                for at, piece in pieces[:count]:
                    _apply(image, _Change(0, at, piece))
        del image[size:]
        image.extend(bytes(size - len(image)))
        return bytes(image)

    def _size(self, rng: Random) -> int:
        """Sizes reach the device in their order, with or without what lies below them."""
        sizes = [len(self.durable)]
        for change in self.pending:
            sizes.append(change.size if change.content is None else max(sizes[-1], change.size))
        return rng.choice((sizes[0], sizes[-1], rng.choice(sizes)))


def _apply(image: bytearray, change: _Change) -> None:
    if change.content == b"":
        return
    if change.content is None:
        del image[change.at :]
    if len(image) < change.at:
        image.extend(bytes(change.at - len(image)))
    if change.content is not None:
        image[change.at : change.size] = change.content


def _by_block(changes: Iterable[_Change], block: int) -> dict[int, list[tuple[int, bytes]]]:
    """The pieces of all writes, by the block in which they lie, in order."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for change in changes:
        at, content = change.at, change.content
        if content is None:
            # What a cut took away reads as zeros if the size that survives is a larger one.
            for start, pieces in found.items():
                if start + block > at:
                    low = max(start, at)
                    pieces.append((low, bytes(start + block - low)))
            continue
        while at < change.size:
            start = at - at % block
            stop = min(start + block, change.size)
            piece = content[at - change.at : stop - change.at]
            found.setdefault(start, []).append((at, piece))
            at = stop
    return found


class _Names:
    """A directory: which names are durable, and what changed since its last flush."""

    def __init__(self, durable: dict[str, _Inode]) -> None:
        self.durable = durable
        self.pending: list[tuple[int, Op, str, str, _Inode]] = []
        self.begun: dict[int, int] = {}

    def change(self, number: int, record: Record, inode: _Inode) -> None:
        old, _, new = record.content.decode().rpartition("\0")
        if record.op is Op.UNLINK:
            old, new = new, ""
        self.pending.append((number, record.op, old, new, inode))

    def flush(self, before: int) -> None:
        for change in self.pending:
            if change[0] < before:
                _rename(self.durable, *change[1:])
        self.pending = [change for change in self.pending if change[0] >= before]

    def present(self) -> dict[str, _Inode]:
        names = dict(self.durable)
        for change in self.pending:
            _rename(names, *change[1:])
        return names

    def crashed(self, rng: Random) -> dict[str, _Inode]:
        names = dict(self.durable)
        survival = rng.choice(SURVIVAL)
        for change in self.pending:
            if rng.random() < survival:
                _rename(names, *change[1:])
        return names


def _rename(names: dict[str, _Inode], op: Op, old: str, new: str, inode: _Inode) -> None:
    """One change of names, whole or not at all: a rename is atomic."""
    if op in (Op.UNLINK, Op.RENAME) and names.get(old) is inode:
        del names[old]
    if op is not Op.UNLINK:
        names[new] = inode


class StrangeOperationError(Exception):
    """The log holds something that this model of a disk does not know."""


class Disk:
    """The files of one directory while a log is replayed, record after record."""

    def __init__(self, base: Path | None = None) -> None:
        files = [] if base is None else [p for p in base.iterdir() if not p.match("*-lock")]
        self._inodes = {path.stat().st_ino: _Inode(path.read_bytes()) for path in files}
        self._names = _Names({path.name: self._inodes[path.stat().st_ino] for path in files})
        self._next = 0

    def replay(self, record: Record) -> None:
        """Let one more record happen."""
        self._next += 1  # an inode's number may be used again: a file is the object, not the number
        number, op = self._next, record.op
        if op is Op.STRANGE:
            raise StrangeOperationError(record.content.decode(errors="replace"))
        if op is Op.CREATE:
            self._inodes[record.inode] = _Inode()
        if op in (Op.CREATE, Op.LINK, Op.RENAME, Op.UNLINK):
            self._names.change(number, record, self._inodes[record.inode])
        elif op is Op.WRITE:
            self._inodes[record.inode].write(number, record)
        elif op is Op.TRUNCATE:
            self._inodes[record.inode].pending.append(_Change(number, record.at, None))
        elif op in (Op.FLUSH_BEGIN, Op.FLUSH_END):
            self._flush(number, record)

    def _flush(self, number: int, record: Record) -> None:
        directory = record.flags & Flag.DIRECTORY
        target = self._names if directory else self._inodes[record.inode]
        if record.op is Op.FLUSH_BEGIN:
            target.begun[record.at] = number
        else:
            target.flush(target.begun.pop(record.at))

    def present(self) -> dict[str, bytes]:
        """What the directory holds now, while the power is on."""
        names = self._names.present()
        return {name: inode.present() for name, inode in names.items()}

    def crashed(self, rng: Random) -> dict[str, bytes]:
        """What the directory may hold if the power fails now."""
        names = sorted(self._names.crashed(rng).items())
        contents: dict[int, bytes] = {}
        for _, inode in names:
            if id(inode) not in contents:
                contents[id(inode)] = inode.crashed(rng)
        return {name: contents[id(inode)] for name, inode in names}


def missed(log: Iterable[Record], directory: Path) -> list[str]:
    """Names under which the log, replayed to its end, has something else than the directory.

    Nothing escapes the recorder: neither a call that it does not know nor a store into a map.
    """
    disk = Disk()
    for record in log:
        disk.replay(record)
    replayed = disk.present()
    found = {p.name: p.read_bytes() for p in directory.iterdir() if not p.match("*-lock")}
    names = sorted(replayed.keys() | found.keys())
    return [name for name in names if replayed.get(name) != found.get(name)]


def moments(log: list[Record]) -> list[int]:
    """How many records a power cut may leave: any number, but a moment is one moment.

    A file that is grown by a thousand blank pages is no more likely than one other record.
    """
    blank = [record.op is Op.WRITE and not any(record.content) for record in log]
    last = len(log)
    return [at for at in range(1, last + 1) if at == last or not (blank[at - 1] and blank[at])]


def cuts(log: list[Record], seed: str, count: int) -> Iterator[tuple[int, int, Random]]:
    """``count`` power cuts: ``(number of the image, records before the cut, its chances)``.

    In the order of the log, so that one replay makes them all; each depends on its number alone.
    The first one is the cut behind everything.
    """
    possible = moments(log)
    chosen = []
    for image in range(count):
        rng = Random(f"{seed}/{image}")
        chosen.append((rng.choice(possible) if image else len(log), image, rng))
    for at, image, rng in sorted(chosen, key=lambda cut: cut[:2]):
        yield image, at, rng
