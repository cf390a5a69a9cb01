"""From broken items to the masks and the record of a repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memcore.errors import InternalError
from memcore.formats import Entry, PairPolicy, apply_mends, find_violations, mend, render
from memcore.log import count_message
from memcore.model import Mask, Message, Repair
from memcore.tokens import TokenCounter

__all__ = ["NOTHING", "Mended", "mended"]


@dataclass(frozen=True, slots=True)
class Mended:
    """What a repair does about a history."""

    masks: tuple[Mask, ...] = ()
    repairs: tuple[Repair, ...] = ()
    """All that is broken, what rendering mends by itself included."""

    @property
    def reason(self) -> str | None:
        """How many of each there are; None if there are none."""
        found = Counter(each.action for each in self.repairs)
        return ", ".join(f"{count:,} {action}" for action, count in sorted(found.items())) or None


NOTHING: Final = Mended()


def mended(
    entries: Sequence[Entry],
    policy: PairPolicy,
    counter: TokenCounter,
    mode: str,
    *,
    over: Mapping[int, Mask],
    locked: Collection[int] = (),
) -> Mended:
    """What makes the entries, as they are shown at present, whole; O(n).

    ``over`` are the masks by which they are shown so, by seq; ``locked`` are the seqs of entries
    that no mask can show otherwise.

    Raises:
        InternalError: the masks would leave an orphan or an unanswered call, or break a rule of the
            policy that rendering keeps without them; nothing of it may be stored.
    """
    rules = policy.mended
    rendered = render(entries, rules)
    mends = mend(
        entries,
        rules,
        mode,
        locked=[at for at, entry in enumerate(entries) if entry.seq in locked],
    )
    found = rendered.repairs
    if mends:  # calls without ids may have other results without what goes
        found += _held(rendered.messages, apply_mends(entries, mends), rules, mode, locked)
    found = [_renamed(each, mode) for each in found]
    listed = {(each.action, each.seq) for each in found}
    for change in mends:
        seq = entries[change.at].seq
        if (change.action, seq) not in listed:
            found.append(Repair(change.action, seq, change.keys[0][1] if change.keys else None))
    masks = []
    for change in mends:
        seq, message = entries[change.at].seq, change.message
        tokens = 0 if message is None else count_message(message, counter)
        rests_on = entries[change.because].seq if change.because > change.at else 0
        if seq in over:
            rests_on = max(rests_on, over[seq].because)
        masks.append(Mask(seq, change.action, tokens, message, rests_on))
    return Mended(tuple(masks), tuple(dict.fromkeys(found)))


def _renamed(repair: Repair, mode: str) -> Repair:
    """What rendering answers synthetically a drop takes out."""
    if mode == "drop" and repair.action == "synthesized":
        return Repair("dropped", repair.seq, repair.call_id)
    return repair


def _held(
    before: Sequence[Message],
    entries: list[Entry],
    policy: PairPolicy,
    mode: str,
    locked: Collection[int],
) -> list[Repair]:
    """Render what would be shown, hold it to what is shown now, and say what rendering mends."""
    rendered = render(entries, policy)
    actions = {"orphan", "superseded"} | ({"synthesized"} if mode == "drop" else set())
    left = [r for r in rendered.repairs if r.action in actions and r.seq not in locked]
    had = Counter((each.rule, each.call_id) for each in find_violations(before, policy))
    has = find_violations(rendered.messages, policy)
    new = [each for each in has if each.rule != "start" and not had[each.rule, each.call_id]]
    if left or new:
        msg = f"a repair would leave {[*left, *new][0]}; nothing was recorded"
        raise InternalError(msg)
    return rendered.repairs
