"""View rows of a session: compactions and repairs.

A view stands for the items before its cut, which the log keeps. It is chained to its predecessor
and records the last seq that it covers and the prefix hash there. It applies only if that seq is
live and the hash matches; otherwise its newest valid ancestor does, so undo, rewind and fork need
not touch views at all. A view may also mask items after its cut. It stores only the masks that it
adds: its ancestors' masks stay in force unless it discards all of them. A repair's mask is in force
only while the item that caused it is live: a replaced result reappears when the newer one is
undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError
from memcore.model import Mask, Repair, View
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "StoredView",
    "applies_to",
    "choose_view",
    "is_in_force",
    "is_known",
    "masks_of",
    "read_view",
    "resolve_view",
    "view_chain",
    "write_view",
]


_END: Final = 2**64
_COUNT_END: Final = 2**62


class StoredView(NamedTuple):
    """A view with the fields that only the storage layers need."""

    view: View
    chain: int
    """Prefix hash of the log at the last covered item."""
    owner: int
    """Session that owns the row (a fork shares its parent's views)."""
    parent_owner: int
    mask_owners: tuple[int, ...] = ()
    """Session that owns the item of each of the view's masks, as forks reuse seqs."""
    inherits: bool = False
    """True if its ancestors' masks stay in force."""


def write_view(txn: Txn, scope: int, stored: StoredView) -> None:
    """Write one view row."""
    view = stored.view
    key = keys.session_row(scope, stored.owner, Row.VIEW, view.number)
    body, flags = encode_json(
        {
            "chain": stored.chain,
            "parent": view.parent,
            "parent_owner": stored.parent_owner,
            "cut_seq": view.cut_seq,
            "covered": view.covered,
            "summary": view.summary,
            "pinned": list(view.pinned),
            "status": view.status,
            "tokens_before": view.tokens_before,
            "tokens_after": view.tokens_after,
            "created_at": view.created_at,
            "counter": view.counter,
            "masks": [
                [mask.seq, owner, *mask[1:]]
                for mask, owner in zip(view.masks, stored.mask_owners, strict=True)
            ],
            "inherits": stored.inherits,
            "policy": view.policy,
            "reason": view.reason,
            "repair": view.repair,
            "repairs": [[each.action, each.seq, each.call_id] for each in view.repairs],
        }
    )
    txn.put(key, seal_value(key, body, flags))


def read_view(txn: ReadTxn, scope: int, owner: int, number: int) -> StoredView | None:
    """Read one view row, or None.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = keys.session_row(scope, owner, Row.VIEW, number)
    value = txn.get(key)
    if value is None:
        return None
    flags, body = open_value(key, value)
    with decoding(key, "view"):
        found = decode_json(body, flags)
        chain, parent_owner = found.pop("chain"), found.pop("parent_owner")
        pinned, inherits = tuple(found.pop("pinned")), bool(found.pop("inherits", False))
        masked = [_mask(*entry) for entry in found.pop("masks", ())]
        masks, owners = tuple(mask for mask, _ in masked), tuple(of for _, of in masked)
        repairs = tuple(_repair(*entry) for entry in found.pop("repairs", ()))
        view = View(number=number, pinned=pinned, masks=masks, repairs=repairs, **found)
    numbers = (chain, parent_owner, view.parent, view.cut_seq, *pinned, *owners)
    counts = (view.covered, view.tokens_before, view.tokens_after)
    sound = (
        all(type(number) is int and 0 <= number < _END for number in numbers)
        and all(type(count) is int and 0 <= count < _COUNT_END for count in counts)
        and type(view.created_at) in (int, float)
        and 0 <= view.created_at < _COUNT_END
        and all(isinstance(text, str | None) for text in (view.summary, view.reason, view.repair))
        and all(isinstance(text, str) for text in (view.counter, view.policy, view.status))
    )
    if not sound:
        raise _malformed(key)
    return StoredView(view, chain, owner, parent_owner, owners, inherits)


def _mask(seq: int, owner: int, *rest: Any) -> tuple[Mask, int]:
    """Parse a stored mask; returns it with its owner.

    Raises:
        TypeError: it is malformed.
    """
    mask = Mask(seq, *rest)
    numbers = (mask.seq, mask.tokens, mask.because)
    whole = all(type(number) is int and 0 <= number < _END for number in numbers)
    if not (whole and isinstance(mask.action, str) and isinstance(mask.message, dict | None)):
        msg = "no mask"
        raise TypeError(msg)
    return mask, owner


def _repair(action: str, seq: int | None, call_id: str | None) -> Repair:
    """Parse a stored repair.

    Raises:
        TypeError: it is malformed.
    """
    is_seq = seq is None or (type(seq) is int and 0 <= seq < _END)
    if not is_seq or not isinstance(action, str) or not isinstance(call_id, str | None):
        msg = "no repair"
        raise TypeError(msg)
    return Repair(action, seq, call_id)


def _malformed(key: bytes) -> CorruptValueError:
    msg = f"the view under key {key.hex()} is malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)


def view_chain(txn: ReadTxn, scope: int, owner: int, number: int) -> Iterator[StoredView]:
    """Yield a view and its ancestors, newest first.

    Raises:
        CorruptValueError: a row is damaged, or a view is its own ancestor.
    """
    seen: set[tuple[int, int]] = set()
    while number:
        if (owner, number) in seen:
            raise _malformed(keys.session_row(scope, owner, Row.VIEW, number))
        seen.add((owner, number))
        found = read_view(txn, scope, owner, number)
        if found is None:
            return
        yield found
        owner, number = found.parent_owner, found.view.parent


def resolve_view(
    txn: ReadTxn,
    scope: int,
    owner: int,
    number: int,
    chain_at: Callable[[int], int | None],
) -> StoredView | None:
    """Return the newest view of the chain that still applies, or None.

    ``chain_at`` returns the prefix hash at a live seq, and None for a seq that is not live.
    """
    for stored in view_chain(txn, scope, owner, number):
        if applies_to(stored, chain_at):
            return stored
    return None


def applies_to(stored: StoredView, chain_at: Callable[[int], int | None]) -> bool:
    """Return True if the items that a view covers are live, or if it covers none."""
    return not stored.view.cut_seq or chain_at(stored.view.cut_seq) == stored.chain


def choose_view(
    chain: Iterator[StoredView], view: View | int, chain_at: Callable[[int], int | None]
) -> StoredView | None:
    """Find a view of a chain by a View object or its number; None for 0: no view.

    Raises:
        NotFoundError: the chain has no such view, or the history was truncated below its cut.
        InvalidOptionError: ``view`` is neither a View nor a number.
    """
    if isinstance(view, bool) or not isinstance(view, View | int):
        msg = f"view: expected a View, its number, or 0 for none; got {type(view).__name__}"
        raise InvalidOptionError(msg)
    if view == 0:
        return None
    number = view if isinstance(view, int) else view.number
    for stored in chain:
        if view not in (stored.view, stored.view.number):
            continue
        if applies_to(stored, chain_at):
            return stored
        msg = f"view {number} covers items that are not in the live history any more"
        raise NotFoundError(msg)
    msg = f"view: the session has no view {number} like this one; session.views() lists them"
    raise NotFoundError(msg)


def masks_of(
    txn: ReadTxn,
    scope: int,
    stored: StoredView,
    at: tuple[Callable[[int], int | None], Callable[[int], int | None]],
    *,
    known: tuple[tuple[int, int], dict[int, Mask]] | None = None,
    counter: str = "",
) -> dict[int, tuple[Mask, str]]:
    """Return the masks in force under a view, by seq, each with the counter of its tokens.

    A mask stays in force as long as every later view shows its item. Views of the chain that no
    longer apply were skipped when their successors were made, and are skipped here too.

    ``at`` are two functions of a seq: the session that owns the live item, and the prefix hash
    there; both return None for a seq that is not live. ``known`` are the masks of the view
    ``(owner, number)``, counted by ``counter``, if that may be an ancestor.
    """
    owner_at, chain_at = at
    cut, beside = -1, frozenset[int]()
    found: dict[int, tuple[Mask, str]] = {}
    for each in view_chain(txn, scope, stored.owner, stored.view.number):
        if known is not None and (each.owner, each.view.number) == known[0]:
            for seq, mask in known[1].items():
                if seq > cut or seq in beside:
                    found.setdefault(seq, (mask, counter))
            break
        if not applies_to(each, chain_at):
            continue
        view, pinned = each.view, frozenset(each.view.pinned)
        # Items shown by all views so far: all after ``cut``, and those in ``beside`` before it.
        beside = frozenset(seq for seq in beside if seq > view.cut_seq or seq in pinned).union(
            seq for seq in pinned if cut < seq <= view.cut_seq
        )
        cut = max(cut, view.cut_seq)
        for mask, owner in zip(view.masks, each.mask_owners, strict=True):
            seq = mask.seq
            shown = seq > cut or seq in beside
            if shown and is_in_force(each, mask, owner, owner_at):
                found.setdefault(seq, (mask, view.counter))
        if not each.inherits:
            break
    return found


def is_in_force(
    stored: StoredView, mask: Mask, owner: int, owner_at: Callable[[int], int | None]
) -> bool:
    """Return True if a mask's item, owned by ``owner``, and the mask's cause are live."""
    if owner_at(mask.seq) != owner:
        return False
    return not mask.because or is_known(stored, mask.because, owner_at)


def is_known(stored: StoredView, seq: int, owner_at: Callable[[int], int | None]) -> bool:
    """Return True if a seq's live item is the one that was live when the view was made.

    A fork reuses the seqs after its fork point, and its number is greater than those of all
    sessions that it shares items with.
    """
    owner = owner_at(seq)
    return owner is not None and owner <= stored.owner
