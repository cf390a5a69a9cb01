"""What the services of agent frameworks do: verbs, as in ``verbs``, and how the results look.

Changes of states with their items (``d/name`` of the session, ``du`` of the user, ``da`` in the
list of the application to which all lanes add), artifacts (``a/file``: the tags of its versions),
and the end of a session that is replaced at an expected revision.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import memcore
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX

from .verbs import Place, State, Step, WrongValueError, content, messages, tag_in, tag_of, verb

ARTIFACTS = "artifacts"
LAST = "last"
"""The field of the user's state."""


def every(left: list[str], right: list[str]) -> list[str]:
    """The reducer of what all lanes add to."""
    return [*left, *right]


DELTAS = memcore.StateSchema.of(
    TypedDict("Deltas", {"own": str, f"user:{LAST}": str, "app:all": Annotated[list[str], every]})
)


def _told(state: State, step: Step) -> None:
    name, *sizes = step.arguments
    tags = step.tags(sizes)
    state[f"s/{name}"] = state.get(f"s/{name}", ()) + tuple(tags)
    state[f"d/{name}"] = state["du"] = tags[0]
    state["da"] = (*state.get("da", ()), tags[0])


@verb(_told)
def tell(place: Place, step: Step) -> None:
    """``tell name size...``: items with what they change of all three states, in one commit."""
    name, *sizes = step.arguments
    tag = step.tags(sizes)[0]
    update = {"own": content(tag), f"user:{LAST}": content(tag), "app:all": [tag]}
    command = memcore.Command(update, messages=messages(step, sizes))
    place.scope.session(name, state=DELTAS).apply(command)


def _replaced(state: State, step: Step) -> None:
    name, keep, *sizes = step.arguments
    state[f"s/{name}"] = (*state[f"s/{name}"][:keep], *step.tags(sizes))


@verb(_replaced)
def replace(place: Place, step: Step) -> None:
    """``replace name keep size...``: other items behind the first ``keep``, if nobody wrote."""
    name, keep, *sizes = step.arguments
    session = place.session(name)
    with session.batch(expected_revision=session.revision) as batch:
        batch.undo(len(session) - keep)
        batch.extend(messages(step, sizes))


def _content_of(step: Step) -> str:
    """The tag of an artifact's content: equal labels and sizes are equal contents."""
    _, label, size = step.arguments
    return tag_of(step.lane, int(label[1:]), 0, size)


def _published(state: State, step: Step) -> None:
    name = f"a/{step.arguments[0]}"
    state[name] = (*state.get(name, ()), _content_of(step))


@verb(_published)
def publish(place: Place, step: Step) -> None:
    """``publish file label size``: the next version of an artifact; its row, content and number."""
    publish_next(place.scope.kv(ARTIFACTS), step.arguments[0], content(_content_of(step)).encode())


def publish_next(kv: Any, name: str, payload: bytes) -> int:
    """Store the next version of a file; its number."""
    large = len(payload) > BLOB_INLINE_COMMIT_BYTES_MAX
    held = kv.stage(payload) if large else payload

    def closure(txn: Any) -> int:
        last = next(txn.scan(prefix=f"{name}/", reverse=True, limit=1), None)
        version = 0 if last is None else int(last[0][-6:]) + 1
        txn.put(f"{name}/{version:06}", {"version": version, "size": len(payload)}, content=held)
        return version

    return int(kv.transact(closure))


def _withdrawn(state: State, step: Step) -> None:
    state.pop(f"a/{step.arguments[0]}", None)


@verb(_withdrawn)
def withdraw(place: Place, step: Step) -> None:
    """``withdraw file``: all versions of an artifact."""
    kv = place.scope.kv(ARTIFACTS)
    keys = [key for key, _ in kv.scan(prefix=f"{step.arguments[0]}/")]
    kv.transact(lambda txn: [txn.delete(key) for key in keys], makes_room=True)


# --- looking --------------------------------------------------------------------------------------


def services_of(place: Place) -> State:
    """Deltas and artifacts of a scope, as states have them."""
    found: State = {}
    for entry in place.scope.sessions():
        own = place.session(entry.session_id).state.get("own")
        if own is not None:
            found[f"d/{entry.session_id}"] = tag_in(own)
    last = place.scope.state.get(LAST)
    if last is not None:
        found["du"] = tag_in(last)
    mine = [tag for tag in place.scope.app_state.get("all", []) if tag.startswith(f"{place.lane}|")]
    if mine:
        found["da"] = tuple(mine)
    for name, payload in published(place.scope.kv(ARTIFACTS)):
        found[f"a/{name}"] = (*found.get(f"a/{name}", ()), tag_in(payload.decode()))
    return found


def published(kv: Any) -> list[tuple[str, bytes]]:
    """File and content of every version, in order; numbered without a gap."""
    found: list[tuple[str, bytes]] = []
    counts: dict[str, int] = {}
    for key, row in kv.scan():
        name, _, number = key.rpartition("/")
        payload = kv.content(key)
        if payload is None or len(payload) != row["size"] or int(number) != counts.get(name, 0):
            raise WrongValueError(f"version {key}: {row}, {len(payload or b'')} bytes")
        counts[name] = int(number) + 1
        found.append((name, payload))
    return found
