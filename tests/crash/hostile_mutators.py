"""Ways to damage a file: blind ones, and ones that know where it hurts."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from .hostile_anatomy import (
    BIG,
    META_FIELDS,
    META_FIRST,
    PAGE,
    Anatomy,
    field_of,
    nodes_of,
)
from .hostile_specimens import Specimen

NASTY = (
    0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 127, 255, 256, 511, 512, 4080, 4088, 4095, 4096, 4097,
    2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**51, 2**52, 2**63 - 1, 2**63,
    2**64 - 2, 2**64 - 1,
)  # fmt: skip


@dataclass(slots=True)
class Victim:
    """A specimen under the knife.

    ``stale``: pages of older states were put in whole, or a sealed record that changes rows.
    ``sealed``: a value was changed and its checksum put right, which no reader can tell.
    """

    dice: random.Random
    specimen: Specimen
    map: Anatomy
    image: bytearray
    stale: bool = False
    sealed: bool = False

    def nasty(self, size: int, near: int = 0) -> bytes:
        """An integer that programs choke on, as so many bytes."""
        dice = self.dice
        number = dice.choice(
            (
                dice.choice(NASTY),
                dice.getrandbits(8 * size),
                near + dice.choice((-2, -1, 1, 2, 8)),
                dice.randrange(self.map.pages + 2),
                dice.choice(self.map.tree),
            )
        )
        return (number % 2 ** (8 * size)).to_bytes(size, "little")

    def put(self, at: int, piece: bytes) -> None:
        """Overwrite, never lengthen."""
        end = min(at + len(piece), len(self.image))
        if 0 <= at < end:
            self.image[at:end] = piece[: end - at]

    def number(self, at: int, size: int) -> int:
        return int.from_bytes(self.image[at : at + size], "little")

    def page_of(self) -> int:
        """A page, more often one that matters."""
        dice, found = self.dice, self.map
        kind = dice.choice(
            (found.metas, found.branches, found.leaves, found.leaves, found.free_list,
             found.overflows, [found.redo], [found.redo + 1], range(found.pages))
        )  # fmt: skip
        return dice.choice(list(kind) or [0])


Mutator = Callable[[Victim], None]


# --- blind ----------------------------------------------------------------------------------------


def flip(victim: Victim) -> None:
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 2, 3, 8, 30, 200))):
        at = dice.randrange(len(victim.image))
        victim.image[at] ^= 1 << dice.randrange(8)


def aim(victim: Victim) -> None:
    """Bytes of pages that matter."""
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = victim.page_of() * PAGE + dice.choice(
            (dice.randrange(16), dice.randrange(160), dice.randrange(PAGE))
        )
        victim.put(at, dice.randbytes(dice.choice((1, 1, 2, 8))))


def truncate(victim: Victim) -> None:
    dice, size = victim.dice, len(victim.image)
    cut = dice.choice(
        (dice.randrange(size), dice.randrange(size // PAGE + 1) * PAGE,
         size - dice.randrange(1, 9 * PAGE), dice.randrange(3 * PAGE))
    )  # fmt: skip
    del victim.image[max(cut, 0) :]


def extend(victim: Victim) -> None:
    dice = victim.dice
    count = dice.choice((1, 100, PAGE, 3 * PAGE + 5, 40 * PAGE))
    first = dice.randrange(len(victim.image))
    victim.image += dice.choice(
        (bytes(count), dice.randbytes(count), bytes(victim.image[first : first + count]))
    )


def swap(victim: Victim) -> None:
    """Two pages change places, with or without their numbers."""
    one, two = victim.page_of() * PAGE, victim.page_of() * PAGE
    first, second = victim.image[one : one + PAGE], victim.image[two : two + PAGE]
    victim.put(one, bytes(second))
    victim.put(two, bytes(first))
    if victim.dice.random() < 0.5:
        victim.put(one, (one // PAGE).to_bytes(8, "little"))
        victim.put(two, (two // PAGE).to_bytes(8, "little"))


def spread(victim: Victim) -> None:
    """A run of pages is copied over another."""
    dice = victim.dice
    run = dice.choice((1, 1, 2, 5, 64)) * PAGE
    source, target = dice.randrange(victim.map.pages) * PAGE, victim.page_of() * PAGE
    victim.put(target, bytes(victim.image[source : source + run]))
    if dice.random() < 0.5:
        victim.put(target, (target // PAGE).to_bytes(8, "little"))


def splice(victim: Victim) -> None:
    """Pages of an older state, or of another file, in their own or another place."""
    dice, specimen = victim.dice, victim.specimen
    older = dice.choice((*specimen.older, specimen.foreign))
    victim.stale = older is not specimen.foreign
    for _ in range(dice.choice((1, 1, 3, 20))):
        source = dice.randrange(len(older) // PAGE)
        target = source if dice.random() < 0.6 else victim.page_of()
        run = dice.choice((1, 1, 1, 4, 100))
        victim.put(target * PAGE, older[source * PAGE : (source + run) * PAGE])
        if dice.random() < 0.5:
            victim.put(target * PAGE, target.to_bytes(8, "little"))
    if older is specimen.foreign and victim.image[: 2 * PAGE] == older[: 2 * PAGE]:
        victim.put(0, specimen.content[:PAGE])  # with both of its metas it would be that file


# --- the store's bones ----------------------------------------------------------------------------


def forge_meta(victim: Victim) -> None:
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        page = dice.choice((0, 1, victim.map.newest))
        at, size = META_FIELDS[dice.choice(list(META_FIELDS))]
        at += page * PAGE + META_FIRST
        victim.put(at, victim.nasty(size, victim.number(at, size)))


def mix_metas(victim: Victim) -> None:
    """One meta page takes fields of the other, or goes back in time."""
    dice, new = victim.dice, victim.map.newest
    target, source = dice.choice(((new, 1 - new), (1 - new, new)))
    for name in dice.sample(list(META_FIELDS), dice.choice((1, 2, 5, len(META_FIELDS)))):
        at, size = META_FIELDS[name]
        piece = victim.image[source * PAGE + META_FIRST + at :][:size]
        victim.put(target * PAGE + META_FIRST + at, bytes(piece))
    if dice.random() < 0.7:
        at = target * PAGE + META_FIRST + META_FIELDS["txnid"][0]
        step = dice.choice((-100, -4, -2, 0, 2, 4, 100, 2**40))
        txnid = field_of(victim.specimen.content, target, "txnid") + step
        victim.put(at, (txnid % 2**64).to_bytes(8, "little"))


def forge_header(victim: Victim) -> None:
    """Number, pad, flags or bounds of a page."""
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 2, 4))):
        page = victim.page_of() * PAGE
        at, size = dice.choice(((0, 8), (8, 2), (10, 2), (10, 2), (12, 2), (14, 2), (12, 4)))
        victim.put(page + at, victim.nasty(size, victim.number(page + at, size)))


def forge_node(victim: Victim) -> None:
    """Offsets, sizes, flags and child pointers of the nodes of a tree page."""
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 2, 6))):
        page = dice.choice(victim.map.tree)
        nodes = nodes_of(victim.specimen.content, page)
        which = dice.randrange(len(nodes))
        at, size = dice.choice(
            ((page * PAGE + 16 + 2 * which, 2), (nodes[which], 2), (nodes[which] + 2, 2),
             (nodes[which] + 4, 2), (nodes[which] + 6, 2), (nodes[which], 6))
        )  # fmt: skip
        victim.put(at, victim.nasty(size, victim.number(at, size)))


def bend_branch(victim: Victim) -> None:
    """A branch points elsewhere: to itself, to its parent, to another's child, to a free page."""
    dice, found = victim.dice, victim.map
    if not found.branches:
        forge_node(victim)
        return
    for _ in range(dice.choice((1, 1, 2))):
        node = dice.choice(nodes_of(victim.specimen.content, dice.choice(found.branches)))
        target = dice.choice(
            (dice.choice(found.branches), dice.choice(found.leaves), dice.choice(found.tree),
             dice.randrange(found.pages), found.redo, found.pages + dice.randrange(9))
        )  # fmt: skip
        victim.put(node, target.to_bytes(6, "little"))


def touch_key(victim: Victim) -> None:
    """A key's bytes: a separator of a branch, or a row's key."""
    dice = victim.dice
    page = dice.choice(victim.map.branches or victim.map.leaves)
    if dice.random() < 0.4:
        page = dice.choice(victim.map.leaves)
    content = victim.specimen.content
    node = dice.choice(nodes_of(content, page))
    size = int.from_bytes(content[node + 6 : node + 8], "little")
    if size:
        at = node + 8 + dice.randrange(size)
        victim.put(at, bytes(((content[at] + dice.choice((1, 255, 128, 16))) % 256,)))


def swap_nodes(victim: Victim) -> None:
    """Two rows or children of a page change places, or one is named twice."""
    dice = victim.dice
    page = dice.choice(victim.map.tree)
    count = len(nodes_of(victim.specimen.content, page))
    one, two = (page * PAGE + 16 + 2 * dice.randrange(count) for _ in range(2))
    first, second = victim.image[one : one + 2], victim.image[two : two + 2]
    victim.put(one, bytes(second))
    if dice.random() < 0.5:
        victim.put(two, bytes(first))


def drop_nodes(victim: Victim) -> None:
    """Rows vanish: the page says that it holds fewer."""
    dice = victim.dice
    page = dice.choice(victim.map.tree)
    count = len(nodes_of(victim.specimen.content, page))
    keep = dice.randrange(count)
    victim.put(page * PAGE + 12, (16 + 2 * keep).to_bytes(2, "little"))
    if dice.random() < 0.3:  # with the count of entries put right
        at = victim.map.newest * PAGE + META_FIRST + META_FIELDS["entries"][0]
        victim.put(at, ((victim.number(at, 8) - count + keep) % 2**64).to_bytes(8, "little"))


def forge_overflow(victim: Victim) -> None:
    """A large value: its run's header, its size, the page where it begins."""
    dice = victim.dice
    content = victim.specimen.content
    nodes = [node for page in victim.map.leaves for node in nodes_of(content, page)]
    node = dice.choice([node for node in nodes if content[node + 4] & BIG])
    start = node + 8 + int.from_bytes(content[node + 6 : node + 8], "little")
    page = int.from_bytes(content[start : start + 8], "little")
    at, size = dice.choice(
        ((page * PAGE, 8), (page * PAGE + 10, 2), (page * PAGE + 12, 4), (node, 4), (start, 8),
         (node + 4, 2))
    )  # fmt: skip
    victim.put(at, victim.nasty(size, victim.number(at, size)))


def forge_free(victim: Victim) -> None:
    """The list of free pages: numbers in it, its count, pages that are in use."""
    dice = victim.dice
    if not victim.map.free_list:
        forge_meta(victim)
        return
    for _ in range(dice.choice((1, 1, 3))):
        page = dice.choice(victim.map.free_list)
        node = dice.choice(nodes_of(victim.specimen.content, page))
        entries = max(victim.number(node, 4) // 8, 1)
        at = node + 16 + 8 * dice.randrange(min(entries, 40))
        used = dice.choice(victim.map.tree)
        victim.put(
            at, dice.choice((victim.nasty(8, victim.number(at, 8)), used.to_bytes(8, "little")))
        )


# --- memcore's own rows ---------------------------------------------------------------------------


def forge_redo(victim: Victim) -> None:
    """Head and records of the redo area, some whole under the file's own seed."""
    dice, found = victim.dice, victim.map
    start = found.redo * PAGE + 16
    if dice.random() < 0.3:
        at, size = dice.choice(((0, 16), (16, 8), (32, 4), (-4, 4), (-6, 2), (-16, 8)))
        victim.put(start + at, victim.nasty(size, victim.number(start + at, size)))
        return
    seed = victim.number(start + 16, 8)
    slot_bytes = victim.number(start + 32, 4)
    txnid = field_of(victim.specimen.content, found.newest, "txnid") + dice.choice((0, 1, 1, 1, 2))
    image = victim.image[(~txnid & 1) * PAGE + META_FIRST :][:136]
    body = dice.choice(
        (b"", dice.randbytes(dice.choice((3, 40, 900))), _operations(dice, victim), bytes(600))
    )
    length = dice.choice((len(body),) * 6 + (len(body) + 9, 2**32 - 1, slot_bytes))
    rest = struct.pack("<QQI", txnid, xxh3_64_intdigest(bytes(image)), length) + body
    check = xxh3_64_intdigest(rest, seed) ^ (dice.random() < 0.1)
    victim.stale = True
    slot = (found.redo + 1) * PAGE + (txnid & 1) * slot_bytes
    victim.put(slot, struct.pack("<Q", check) + rest)


def _operations(dice: random.Random, victim: Victim) -> bytes:
    """Whole operations whose effect must be found out or refused."""
    parts = []
    for _ in range(dice.choice((1, 2, 30))):
        key = dice.choice(
            (dice.randbytes(dice.choice((1, 8, 26, 511, 512, 600))), b"\x00format", b"\x00redo",
             _some_key(dice, victim), b"\x05" + bytes(25))
        )  # fmt: skip
        value = dice.randbytes(dice.choice((0, 9, 40, 5000)))
        if dice.random() < 0.3:
            parts.append(struct.pack("<HI", len(key), 0xFFFFFFFF) + key)
        else:
            parts.append(struct.pack("<HI", len(key), len(value)) + key + value)
    return b"".join(parts)


def _some_key(dice: random.Random, victim: Victim) -> bytes:
    node = dice.choice(nodes_of(victim.specimen.content, dice.choice(victim.map.leaves)))
    size = struct.unpack_from("<H", victim.specimen.content, node + 6)[0]
    return victim.specimen.content[node + 8 : node + 8 + size]


def plant_run(victim: Victim) -> None:
    """A decoy of the redo run in an earlier or later page of the first ones."""
    found = victim.map
    head = victim.image[found.redo * PAGE :][: victim.dice.choice((32, 52, PAGE))]
    page = victim.dice.choice([p for p in range(2, min(32, found.pages)) if p != found.redo])
    victim.put(page * PAGE, page.to_bytes(8, "little") + bytes(head[8:]))


def forge_value(victim: Victim) -> None:
    """A value's header or body."""
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 3))):
        _, start, size = _small_value(victim)
        at = start + dice.choice((0, 1, 2 + dice.randrange(8), 10 + dice.randrange(size - 10)))
        piece = victim.nasty(dice.choice((1, 1, 2, 8)), victim.specimen.content[at])
        victim.put(at, piece[: start + size - at])


def seal_value(victim: Victim) -> None:
    """A value that means something else and is sealed again: no reader can tell, none may fall."""
    dice = victim.dice
    for _ in range(dice.choice((1, 1, 2))):
        key, start, size = _small_value(victim, dice.choice((1, 2, 4, 5, 6, None, None)))
        for _ in range(dice.choice((1, 1, 2))):
            at = start + dice.choice(
                (1, 10, 11 + dice.randrange(size - 10), 10 + 8 * dice.randrange(24))
            )
            piece = victim.nasty(dice.choice((1, 1, 8)), victim.specimen.content[at])
            victim.put(at, piece[: max(start + size - at, 0)])
        value = bytes(victim.image[start : start + size])
        sealed = len(key).to_bytes(2, "little") + value[:2] + key + value[10:]
        victim.put(start + 2, xxh3_64_digest(sealed))
    victim.sealed = True


def _small_value(victim: Victim, row: int | None = None) -> tuple[bytes, int, int]:
    """A key, and where its value lies; ``row``: one of that sort of a session's rows."""
    dice, content = victim.dice, victim.specimen.content
    for attempt in range(400):
        node = dice.choice(nodes_of(content, dice.choice(victim.map.leaves)))
        size, flags, key_bytes = struct.unpack_from("<IHH", content, node)
        start = node + 8 + key_bytes
        key = content[node + 8 : start]
        fits = row is None or attempt > 300 or (key[0] == 5 and key[17] == row)
        if not flags & BIG and size > 11 and key[0] and fits:
            return key, start, size
    raise AssertionError("no value is small enough")


def forge_format(victim: Victim) -> None:
    """The format record, with or without its checksum put right."""
    dice = victim.dice
    at = victim.image.find(b"\x00formatmemcore\x00")
    if at < 0:
        flip(victim)
        return
    start, size = at + 7, 48
    piece = dice.choice(((0, 8), (8, 2), (10, 2), (12, 8), (20, 1), (24, 16), (40, 8)))
    victim.put(start + piece[0], victim.nasty(piece[1]))
    if dice.random() < 0.7:
        body = bytes(victim.image[start : start + size])
        victim.put(start + size, xxh3_64_digest(body)[::-1])


MUTATORS: dict[str, tuple[int, Mutator]] = {
    "flip": (8, flip), "aim": (12, aim), "truncate": (6, truncate), "extend": (3, extend),
    "swap": (6, swap), "spread": (5, spread), "splice": (8, splice), "meta": (9, forge_meta),
    "metas": (5, mix_metas), "header": (10, forge_header), "node": (12, forge_node),
    "branch": (8, bend_branch), "key": (8, touch_key), "nodes": (4, swap_nodes),
    "drop": (4, drop_nodes), "overflow": (7, forge_overflow), "free": (7, forge_free),
    "redo": (8, forge_redo), "run": (2, plant_run), "value": (6, forge_value),
    "seal": (6, seal_value),
    "format": (3, forge_format),
}  # fmt: skip
"""Name -> (weight, mutator)."""


def mutate(dice: random.Random, specimen: Specimen, found: Anatomy) -> tuple[list[str], Victim]:
    """The names of the mutators that were used, and the result."""
    victim = Victim(dice, specimen, found, bytearray(specimen.content))
    names, weights = list(MUTATORS), [weight for weight, _ in MUTATORS.values()]
    used = dice.choices(names, weights, k=dice.choice((1, 1, 1, 1, 2, 3)))
    for name in used:
        if victim.image:
            MUTATORS[name][1](victim)
    return used, victim
