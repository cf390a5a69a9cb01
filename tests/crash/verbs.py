"""What workloads do: each verb acts on a database, and says what it makes of a lane's state.

A *lane* is one thread of one process; it works in a scope of its own, one operation after the
other, so its state is a function of how many of its operations happened. All that a verb stores
carries a *tag* (lane, number of the operation, position, size), and its content follows from the
tag: a value that is not exactly that is a wrong one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import memcore
from memcore.codec.values import encode_json
from memcore.compaction import Reduction, Visible
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX, REDO_SLOT_BYTES
from memcore.log.checkpoint import read_checkpoint
from memcore.rows.views import view_chain
from memcore.session.content_filter import QUARANTINED
from memcore.session.session import ref_of, store_of
from memcore.tokens import get_counter

State = dict[str, Any]
"""What a lane has stored: sessions ``s/name``, their views ``v/name``, checkpoints ``p/name`` (each
its name, items, views and notes), usage ``u/name`` (what was billed, for how many items), counters
``c/name`` (but ``COUNTER``) and notes ``n/name`` (of the sessions' state; those before each item
``m/name``, of sessions whose names begin so), what they gave the state of their user ``w/name`` and
of the application ``x/name``, leases ``l/name`` (owner and epoch), what is put aside ``q/name``,
whether they count more than they say ``t/name``, keys ``k/key``, blobs ``b/tag``, its items in the
session that all share under ``shared``.
The values are immutable."""

SHARED = "shared"
PAST = "m"
"""How the names of sessions begin whose state at every item is looked at."""
SOUGHT = "z-"
"""How the names of sessions begin whose items are searched for."""
TOLD = "e-"
"""How the names of sessions begin whose items have envelopes."""
COUNTER = get_counter().id
"""What sessions begin with."""


def tag_of(lane: str, number: int, at: int, size: int) -> str:
    """The name of one piece of content."""
    return f"{lane}|{number}|{at}|{size}"


def content(tag: str) -> str:
    """The content that belongs to a tag; it cannot be mistaken for another's."""
    size = int(tag.rpartition("|")[2])
    filler = hashlib.shake_128(tag.encode()).hexdigest(min(size, 8192) // 2 + 8)
    return f"{tag}:{filler * (size // len(filler) + 1)}"[: max(size, len(tag) + 9)]


class WrongValueError(Exception):
    """A value is not what any operation stored."""


def tag_in(text: Any) -> str:
    """The tag of a content, which must be whole."""
    tag = text.partition(":")[0] if isinstance(text, str) else ""
    if tag.count("|") != 3 or content(tag) != text:
        raise WrongValueError(f"wrong value: {text!r:.80}")
    return tag


class Place:
    """Where a lane works."""

    def __init__(self, db: memcore.Database, lane: str) -> None:
        self.db = db
        self.lane = lane
        self.scope = db.scope(user=lane)
        self.kv = self.scope.kv("facts")
        self.leased: dict[str, tuple[memcore.Session, Any]] = {}
        """By name: the handle that holds a session's lease, and the lease."""

    def session(self, name: str) -> memcore.Session:
        return self.scope.session(name)


class Step(NamedTuple):
    """One operation of a lane: its number and its arguments."""

    lane: str
    number: int
    arguments: list[Any]

    def tags(self, sizes: list[int]) -> list[str]:
        return [tag_of(self.lane, self.number, at, size) for at, size in enumerate(sizes)]


class Verb(NamedTuple):
    """How an operation is done, and what it makes of the state."""

    act: Callable[[Place, Step], Any]
    then: Callable[[State, Step], None]


VERBS: dict[str, Verb] = {}


def _nothing(_: State, __: Step) -> None:
    pass


def verb(then: Callable[[State, Step], None] = _nothing) -> Callable[..., Any]:
    """Register the function that acts under its own name, with its effect."""

    def register(act: Callable[[Place, Step], Any]) -> Callable[[Place, Step], Any]:
        if act.__name__ in VERBS:
            raise ValueError(f"there is a verb {act.__name__!r} already")
        VERBS[act.__name__] = Verb(act, then)
        return act

    return register


def is_big(operation: list[Any]) -> bool:
    """Whether its transaction is larger than a redo slot: others may see it and lose it again.

    Content that is staged goes ahead in transactions of which nobody sees anything.
    """
    sizes = [size for size in operation if isinstance(size, int)]
    if operation[0] != "put":  # values of keys are never staged
        sizes = [size for size in sizes if size <= BLOB_INLINE_COMMIT_BYTES_MAX]
    return sum(sizes) > REDO_SLOT_BYTES * 3 // 4


GONE = "gone"
"""What the state has in the place of an item that expired."""
HELD = "held"
"""What the state has in the place of an item that was put aside."""
SUSPICIOUS = " says eve@example.com"
"""What items end in that a guard puts aside."""


def told_in(item: memcore.Item) -> str:
    """The tag of an item, or that it expired or was put aside."""
    text = item.message["content"]
    if text == QUARANTINED:
        return HELD
    return GONE if text in ("[expired]", ".") else tag_in(text.removesuffix(SUSPICIOUS))


def messages(step: Step, sizes: list[int]) -> list[dict[str, Any]]:
    """The items that an operation appends."""
    return [{"role": "user", "content": content(tag)} for tag in step.tags(sizes)]


# --- sessions ------------------------------------------------------------------------------------


def appended(state: State, step: Step) -> None:
    """The session has the items of an operation that names it and their sizes."""
    name, *sizes = step.arguments
    state[f"s/{name}"] = state.get(f"s/{name}", ()) + tuple(step.tags(sizes))
    if name.startswith(PAST):
        before = (state.get(f"n/{name}", ()),) * len(sizes)
        state[f"m/{name}"] = state.get(f"m/{name}", ()) + before


@verb(appended)
def append(place: Place, step: Step) -> None:
    """``append name size...``: items in one commit."""
    name, *sizes = step.arguments
    place.session(name).extend(messages(step, sizes))


@verb(appended)
def envelop(place: Place, step: Step) -> None:
    """``envelop name size...``: as ``append``, with envelopes; what was read is counted along."""
    name, *sizes = step.arguments
    session = place.scope.session(name, access_counts=True)
    session.tail(3)
    session.context()
    session.extend(messages(step, sizes), envelope={"author": step.lane, "status": "ok"})


def _shared(state: State, step: Step) -> None:
    state[SHARED] = state.get(SHARED, ()) + tuple(step.tags(step.arguments))


@verb(_shared)
def share(place: Place, step: Step) -> None:
    """``share size...``: items in the session to which all lanes append."""
    place.db.session(SHARED, user=SHARED).extend(messages(step, step.arguments))


def _cut(state: State, step: Step) -> None:
    name, keep = step.arguments
    state[f"s/{name}"] = state[f"s/{name}"][:keep]


@verb(_cut)
def undo(place: Place, step: Step) -> None:
    """``undo name keep``: take items off the end until ``keep`` are left."""
    name, keep = step.arguments
    session = place.session(name)
    session.undo(len(session) - keep)


@verb(_cut)
def rewind(place: Place, step: Step) -> None:
    """``rewind name keep``: back to the ``keep``-th live item; the state stays."""
    name, keep = step.arguments
    session = place.session(name)
    session.rewind([0, *(item.seq for item in session)][keep], state=False)


def _cut_back(state: State, step: Step) -> None:
    _taken_back(state, step.arguments[0], *step.arguments)


def _taken_back(state: State, target: str, name: str, keep: int) -> None:
    """``target`` becomes what a session was when it had ``keep`` items."""
    items, before = state[f"s/{name}"], state.get(f"m/{name}", ())
    notes = before[keep] if keep < len(items) else state.get(f"n/{name}", ())
    state[f"s/{target}"] = items[:keep]
    for kind, found in (("m", before[:keep]), ("n", notes)):
        state.pop(f"{kind}/{target}", None)
        if found:
            state[f"{kind}/{target}"] = found


@verb(_cut_back)
def back(place: Place, step: Step) -> None:
    """``back name keep``: back to the ``keep``-th live item, with the state of then."""
    name, keep = step.arguments
    session = place.session(name)
    session.rewind([0, *(item.seq for item in session)][keep])


def _forked_back(state: State, step: Step) -> None:
    name, target, keep = step.arguments
    _taken_back(state, target, name, keep)


@verb(_forked_back)
def fork_back(place: Place, step: Step) -> None:
    """``fork_back name target keep``: a fork of the first ``keep`` items, with their state."""
    name, target, keep = step.arguments
    session = place.session(name)
    session.fork(target, at=[0, *(item.seq for item in session)][keep])


def _forked(state: State, step: Step) -> None:
    name, target, keep = step.arguments
    state[f"s/{target}"] = state[f"s/{name}"][:keep]
    for kind in "vcnd":
        if f"{kind}/{name}" in state:
            state[f"{kind}/{target}"] = state[f"{kind}/{name}"]
    if f"u/{name}" in state:
        billed, seen = state[f"u/{name}"]
        state[f"u/{target}"] = (billed, seen) if seen <= keep else (0, 0)


@verb(_forked)
def fork(place: Place, step: Step) -> None:
    """``fork name target keep``: a fork of the first ``keep`` items, with the state of now."""
    name, target, keep = step.arguments
    session = place.session(name)
    session.fork(target, at=[0, *(item.seq for item in session)][keep], state=False)


def _saved(state: State, step: Step) -> None:
    name, label = step.arguments
    there = label, *(state.get(f"{kind}/{name}", ()) for kind in "svn")
    state[f"p/{name}"] = (*state.get(f"p/{name}", ()), there)
    state.setdefault(f"s/{name}", ())


@verb(_saved)
def checkpoint(place: Place, step: Step) -> None:
    """``checkpoint name label``: save where a session is."""
    name, label = step.arguments
    place.session(name).checkpoint(label)


def _newest(state: State, name: str, label: str) -> tuple[Any, ...]:
    return next(each for each in reversed(state[f"p/{name}"]) if each[0] == label)


def _put_at(state: State, name: str, there: tuple[Any, ...]) -> None:
    _, state[f"s/{name}"], *beside = there
    for kind, found in zip("vn", beside, strict=True):
        state.pop(f"{kind}/{name}", None)
        if found:
            state[f"{kind}/{name}"] = found


def _gone_back(state: State, step: Step) -> None:
    name, label = step.arguments
    _put_at(state, name, _newest(state, name, label))


@verb(_gone_back)
def rewind_to(place: Place, step: Step) -> None:
    """``rewind_to name label``: back to a checkpoint, live or not."""
    name, label = step.arguments
    place.session(name).rewind(label)


def _branched(state: State, step: Step) -> None:
    name, target, label = step.arguments
    _put_at(state, target, _newest(state, name, label))
    if f"c/{name}" in state:
        state[f"c/{target}"] = state[f"c/{name}"]


@verb(_branched)
def fork_at(place: Place, step: Step) -> None:
    """``fork_at name target label``: a new session that shares what a checkpoint has."""
    name, target, label = step.arguments
    place.session(name).fork(target, at=label)


def _unsaved(state: State, step: Step) -> None:
    name, label = step.arguments
    there = list(state[f"p/{name}"])
    there.reverse()
    there.remove(_newest(state, name, label))
    there.reverse()
    state[f"p/{name}"] = tuple(there)
    if not there:
        del state[f"p/{name}"]


@verb(_unsaved)
def unsave(place: Place, step: Step) -> None:
    """``unsave name label``: delete the newest checkpoint of a name."""
    name, label = step.arguments
    place.session(name).delete_checkpoint(label)


def _deleted(state: State, step: Step) -> None:
    for kind in "svucpnmdq":
        state.pop(f"{kind}/{step.arguments[0]}", None)


@verb(_deleted)
def delete(place: Place, step: Step) -> None:
    """``delete name``: a session."""
    place.scope.delete_session(step.arguments[0])


def _compacted(state: State, step: Step) -> None:
    name = f"v/{step.arguments[0]}"
    state[name] = (*state.get(name, ()), *step.tags([200]))


@verb(_compacted)
def compact(place: Place, step: Step) -> None:
    """``compact name``: a summary of all but the last three items."""
    found = place.session(step.arguments[0]).compact(
        lambda _: content(step.tags([200])[0]), force=True
    )
    if found.status != "summarized":
        raise AssertionError(f"the workload wanted a summary, but: {found.status}")


class _LastItem(NamedTuple):
    """Masks the last item by a content."""

    text: str
    name: str = "last_item"

    def reduce(self, items: Sequence[Visible], by: Reduction) -> list[memcore.Mask]:
        """One mask."""
        message = {**items[-1].message, "content": self.text}
        tokens = by.counter.count_message(message, encode_json(message)[0])
        return [memcore.Mask(items[-1].seq, "test", tokens, message)]

    def settings(self) -> dict[str, object]:
        """None that a file could hold."""
        return {"text": self.text}


def _masked(state: State, step: Step) -> None:
    name = step.arguments[0]
    told = f"{len(state[f's/{name}'])}={step.tags([50])[0]}"
    state[f"v/{name}"] = (*state.get(f"v/{name}", ()), told)


@verb(_masked)
def mask(place: Place, step: Step) -> None:
    """``mask name``: another content in place of the last item of a session without undos."""
    stage = memcore.Stage(keep=None, reducers=(_LastItem(content(step.tags([50])[0])),))
    policy = memcore.CompactionPolicy(stages=(stage,), min_gain=0.0)
    found = place.session(step.arguments[0]).compact(policy=policy)
    if found.status != "masked":
        raise AssertionError(f"the workload wanted a mask, but: {found.status}, {found.reason}")


def _told(view: memcore.View) -> str:
    """What a view shows: its masks, or its summary."""
    masks = [f"{m.seq}={tag_in(m.message['content'])}" for m in view.masks if m.message]
    return " ".join(masks) if masks else tag_in(view.summary)


def _uncompacted(state: State, step: Step) -> None:
    name = f"v/{step.arguments[0]}"
    views = state.pop(name)
    if views[1:]:
        state[name] = views[:-1]


@verb(_uncompacted)
def uncompact(place: Place, step: Step) -> None:
    """``uncompact name``: take the last summary back."""
    place.session(step.arguments[0]).uncompact()


def _reported(state: State, step: Step) -> None:
    name = step.arguments[0]
    state[f"u/{name}"] = (step.number, len(state[f"s/{name}"]))


@verb(_reported)
def report(place: Place, step: Step) -> None:
    """``report name``: the number of the operation as what a provider billed."""
    place.session(step.arguments[0]).report_usage(step.number)


def _recounted(state: State, step: Step) -> None:
    name, counter = step.arguments
    state[f"c/{name}"] = counter


@verb(_recounted)
def recount(place: Place, step: Step) -> None:
    """``recount name counter``: another token counter."""
    name, counter = step.arguments
    place.session(name).recount(counter)


def last_notes(left: list[str], right: list[str]) -> list[str]:
    """The reducer of ``notes``: the last five."""
    return [*left, *right][-5:]


NOTES = memcore.StateSchema.of(TypedDict("Notes", {"notes": Annotated[list[str], last_notes]}))


def _noted(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    appended(state, step)
    notes = last_notes(list(state.get(f"n/{name}", ())), step.tags(sizes))
    state[f"n/{name}"] = tuple(notes)


@verb(_noted)
def note(place: Place, step: Step) -> None:
    """``note name size...``: items, and their tags in the session's state, in one commit."""
    name, *sizes = step.arguments
    command = memcore.Command({"notes": step.tags(sizes)}, messages=messages(step, sizes))
    place.scope.session(name, state=NOTES).apply(command)


def _changed(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    _noted(state, step)
    for kind in "wx":
        state[f"{kind}/{name}"] = step.tags(sizes)[0]


@verb(_changed)
def delta(place: Place, step: Step) -> None:
    """``delta name size...``: as ``note``, with fields of the user and of the application."""
    name, *sizes = step.arguments
    with place.scope.session(name, state=NOTES).batch() as batch:
        batch.extend(messages(step, sizes))
        shared = content(step.tags(sizes)[0])
        batch.update_state({f"app:{place.lane}/{name}": shared, f"user:{name}": shared})
        batch.update_state({"notes": step.tags(sizes)})


@verb()
def trim(place: Place, step: Step) -> None:
    """``trim name``: forget the old values of the session's state."""
    place.session(step.arguments[0]).state.trim()


# --- keys and blobs ------------------------------------------------------------------------------


def _put(state: State, step: Step) -> None:
    keys = step.arguments[::2]
    for key, tag in zip(keys, step.tags(step.arguments[1::2]), strict=True):
        state[f"k/{key}"] = tag


@verb(_put)
def put(place: Place, step: Step) -> None:
    """``put key size ...``: values of several keys in one transaction, some over longer ones."""
    keys = step.arguments[::2]
    pairs = list(zip(keys, step.tags(step.arguments[1::2]), strict=True))
    longer = [(key, "longer " * 4_000) for key in keys if step.number % 3 == 0]
    whole = longer + [(key, content(tag)) for key, tag in pairs]
    place.kv.transact(lambda txn: [txn.put(key, value) for key, value in whole])


def _dropped(state: State, step: Step) -> None:
    for key in step.arguments:
        state.pop(f"k/{key}", None)


@verb(_dropped)
def drop(place: Place, step: Step) -> None:
    """``drop key...``: delete keys in one transaction."""
    place.kv.transact(lambda txn: [txn.delete(key) for key in step.arguments])


def _blob_put(state: State, step: Step) -> None:
    state[f"b/{step.tags(step.arguments)[0]}"] = True


@verb(_blob_put)
def blob(place: Place, step: Step) -> None:
    """``blob size``: content under its digest."""
    place.scope.blobs.put(content(step.tags(step.arguments)[0]).encode())


# --- the file ------------------------------------------------------------------------------------


@verb()
def backup(place: Place, step: Step) -> None:
    """``backup name compact``: a copy beside the file, while others write."""
    name, compact = step.arguments
    place.db.backup(Path(place.db.path).with_name(name), compact=compact)


@verb()
def squeeze(place: Place, step: Step) -> None:
    """``squeeze``: swap the file for a compact copy."""
    place.db.copy_compact()


@verb()
def flush(place: Place, step: Step) -> None:
    """``flush``: what was acknowledged before it is durable in every mode when it returns."""
    place.db.flush()


@verb()
def collect(place: Place, step: Step) -> None:
    """``collect``: remove blobs without references."""
    place.scope.blobs.collect()


@verb()
def index(place: Place, step: Step) -> None:
    """``index``: bring the search index up to date."""
    place.scope.index_sessions()


@verb()
def reindex(place: Place, step: Step) -> None:
    """``reindex``: drop the search index and build it anew."""
    place.scope.reindex()


@verb()
def find(place: Place, step: Step) -> None:
    """``find name``: search for items of a session."""
    session = place.session(step.arguments[0])
    _check_found(session, tuple(told_in(item) for item in session))


@verb()
def opened(place: Place, step: Step) -> None:
    """``opened``: the first operation of every lane; the file is there when it is acknowledged."""


# --- looking -------------------------------------------------------------------------------------


def observe(db: memcore.Database, lanes: dict[str, list[str]]) -> dict[str, State]:
    """The state of every lane as the database has it; ``lanes`` names the blobs to look for."""
    found: dict[str, State] = {lane: {} for lane in lanes}
    for _, lane in db.scopes():
        if lane == SHARED:
            for item in db.session(SHARED, user=SHARED):
                tag = tag_in(item.message["content"])
                state = found.setdefault(tag.partition("|")[0], {})
                state[SHARED] = (*state.get(SHARED, ()), tag)
            continue
        found.setdefault(lane, {}).update(_state_of(db, lane, lanes.get(lane, [])))
    return found


def _position(
    db: memcore.Database, session: memcore.Session, saved: memcore.Checkpoint
) -> tuple[Any, ...]:
    """A checkpoint as the state has it."""
    items = db.compare(session, session, at=saved, other_at=0).only_a

    def told(txn: Any) -> tuple[str, ...]:
        scope, number = ref_of(session).find(txn)
        found = read_checkpoint(txn, scope, number, saved.number)
        chain = view_chain(txn, scope, *found.view) if found is not None else ()
        return tuple(_told(stored.view) for stored in chain)[::-1]

    views = store_of(session).read(told)
    tags = tuple(told_in(item) for item in items)
    return saved.name, tags, views, tuple(session.state.at(saved.state or 0).get("notes", ()))


def _check_told(session: memcore.Session, tags: tuple[str, ...]) -> None:
    """Every item says who wrote it, and nothing was counted that nobody read."""
    authors = [item.envelope and item.envelope.author for item in session]
    if authors != [tag.partition("|")[0] for tag in tags]:
        raise WrongValueError(f"wrong authors: {authors!r:.80}")
    session.accessed()  # its row is whole, or not there yet


def _look_closer(session: memcore.Session, tags: tuple[str, ...]) -> None:
    """What the session's name says that it is looked at for."""
    if session.id.startswith(TOLD):
        _check_told(session, tags)
    if session.id.startswith(SOUGHT):
        _check_found(session, tags)


def _check_found(session: memcore.Session, tags: tuple[str, ...]) -> None:
    """The first item and the last are found by their words, and nothing that is not there."""
    for tag in {*tags[:1], *tags[-1:]}:
        found = {told_in(hit.item) for hit in session.search(content(tag), k=1000)}
        if tag not in found or not found <= set(tags):
            raise WrongValueError(f"{session.id}: search for {tag} finds {sorted(found)!r:.80}")


def _counts_too_little(session: memcore.Session, tags: tuple[str, ...], tokens: int) -> bool:
    """Whether a session says less than its items count; what replaces some may count less."""
    by = get_counter(session.counter)
    counted = sum(by.count_message(m, encode_json(m)[0]) for m in (i.message for i in session))
    if counted < tokens and GONE not in tags and HELD not in tags:
        raise WrongValueError(f"{session.id}: {tokens} tokens, {counted} counted")
    return counted > tokens


def _state_of(db: memcore.Database, lane: str, blobs: list[str]) -> State:
    from .leases import lease_of

    state: State = {}
    place = Place(db, lane)
    for entry in place.scope.sessions():
        session = place.session(entry.session_id)
        tags = tuple(told_in(item) for item in session)
        state[f"s/{entry.session_id}"] = tags
        _look_closer(session, tags)
        if saved := tuple(_position(db, session, each) for each in session.checkpoints()):
            state[f"p/{entry.session_id}"] = saved
        if views := session.views():
            state[f"v/{entry.session_id}"] = tuple(map(_told, views))
        if known := session.calibrations():
            seen = session.items(stop=known[0].seq + 1)
            state[f"u/{entry.session_id}"] = (known[0].input_tokens, len(list(seen)))
        if notes := session.state.get("notes"):
            state[f"n/{entry.session_id}"] = tuple(notes)
        if tags and entry.session_id.startswith(PAST):
            past = (session.state.before(item.seq).get("notes", ()) for item in session)
            state[f"m/{entry.session_id}"] = tuple(map(tuple, past))
        if (lease := lease_of(session)) is not None:
            state[f"l/{entry.session_id}"] = lease
        if session.counter != COUNTER:
            state[f"c/{entry.session_id}"] = session.counter
        if _counts_too_little(session, tags, entry.tokens):
            state[f"t/{entry.session_id}"] = True
        if len(tags) != entry.items:
            raise WrongValueError(f"{entry.session_id}: {entry.items} items, {len(tags)} found")
        session.context()
    return state | _beside_sessions(place, blobs)


def _beside_sessions(place: Place, blobs: list[str]) -> State:
    from .frameworks import frameworks_of
    from .graphs import threads_of
    from .lines import lines_of
    from .memories import memories_of
    from .quarantines import held_of
    from .services import LAST, services_of

    state = threads_of(place.scope.graph) | services_of(place) | held_of(place)
    state |= frameworks_of(place) | lines_of(place) | memories_of(place)
    for name, value in place.scope.state.all().items():
        if name != LAST:
            state[f"w/{name}"] = tag_in(value)
    for name, value in place.scope.app_state.all().items():
        lane, _, session = name.partition("/")
        if lane == place.lane:
            state[f"x/{session}"] = tag_in(value)
    for key, value in place.kv.scan():
        state[f"k/{key}"] = tag_in(value)
    for tag in blobs:
        payload = content(tag).encode()
        address = f"sha256:{hashlib.sha256(payload).hexdigest()}"
        if address in place.scope.blobs:
            if place.scope.blobs.get(address) != payload:
                raise WrongValueError(f"wrong blob under {address}")
            state[f"b/{tag}"] = True
    return state
