"""What services do in the model of a stress run: items with states, artifacts, replaced ends.

Items and their states lie in a session of their own beside the owner's, artifacts under the owner's
name. Every item with states also adds one to what the application counts.
"""

from __future__ import annotations

import operator
from random import Random
from typing import Annotated, Any, TypedDict

import memcore

from .services import publish_next, published

Held = tuple[tuple[str, Any], ...]
OPERATIONS = ("tell", "tell", "replace", "publish", "publish", "withdraw")
TOLD_MAX = 20
VERSIONS_MAX = 6
SIZES = (300, 300, 40_000, 250_000)
COUNT = "count"


def choose(random: Random, name: str, number: int, held: Held) -> list[Any]:
    """An operation of services, as far as there is something for it."""
    found = dict(held)
    told = len(found.get("told", ()))
    files = {key[2:]: len(versions) for key, versions in found.items() if key.startswith("a/")}
    if name == "replace" and told:
        return [name, number, random.randrange(told)]
    if name in ("tell", "replace"):
        return ["untell" if told > TOLD_MAX else "tell", number]
    file = random.choice("xyz")
    if files.get(file, 0) > VERSIONS_MAX or (name == "withdraw" and file in files):
        return ["withdraw", number, file]
    return ["publish", number, file]


def applied(held: Held, op: list[Any]) -> Held:
    """What is held after an operation."""
    found = dict(held)
    name, number = op[:2]
    if name == "tell":
        found["told"] = (*found.get("told", ()), number)
        found |= {"own": number, "last": number, "app": number}
    elif name == "replace":
        found["told"] = (*found["told"][: op[2]], number, number)
    elif name == "untell":
        del found["told"], found["own"]
    elif name == "publish":
        key = f"a/{op[2]}"
        found[key] = (*found.get(key, ()), number % len(SIZES))
    elif name == "withdraw":
        found.pop(f"a/{op[2]}", None)
    return tuple(sorted(found.items()))


def _schema(owner: str) -> memcore.StateSchema:
    fields = {"own": int, "user:" + owner: int, "app:" + owner: int}
    count = {"app:" + COUNT: Annotated[int, operator.add]}
    return memcore.StateSchema.of(TypedDict("Told", {**fields, **count}))  # type: ignore[misc]


def _item(number: int) -> dict[str, Any]:
    return {"role": "user", "content": str(number)}


def _payload(owner: str, sort: int) -> bytes:
    return f"{owner}:{sort}".encode().ljust(SIZES[sort], b".")


def perform(db: memcore.Database, owner: str, op: list[Any]) -> None:
    """The operation itself."""
    name, number = op[:2]
    kv = db.scope().kv(f"{owner}-files")
    session = db.session(f"{owner}-told", state=_schema(owner))
    if name == "tell":
        update = {"own": number, f"user:{owner}": number, f"app:{owner}": number}
        command = memcore.Command({**update, f"app:{COUNT}": 1}, messages=[_item(number)])
        session.apply(command)
    elif name == "replace":
        with session.batch(expected_revision=session.revision) as batch:
            batch.undo(len(session) - op[2])
            batch.extend([_item(number)] * 2)
    elif name == "untell":
        db.delete_session(f"{owner}-told")
    elif name == "publish":
        publish_next(kv, op[2], _payload(owner, number % len(SIZES)))
    elif name == "withdraw":
        keys = [key for key, _ in kv.scan(prefix=f"{op[2]}/")]
        kv.transact(lambda txn: [txn.delete(key) for key in keys], makes_room=True)


def observed(db: memcore.Database, owner: str) -> Held:
    """What the database holds for an owner."""
    found: dict[str, Any] = {}
    session, scope = db.session(f"{owner}-told"), db.scope()
    if session.exists():
        found["told"] = tuple(int(item.message["content"]) for item in session.items())
        found["own"] = session.state.get("own")
    for key, state in (("last", scope.state), ("app", scope.app_state)):
        if owner in state:
            found[key] = state[owner]
    for file, payload in published(scope.kv(f"{owner}-files")):
        sort = int(payload.split(b":")[1][:1])
        whole = payload == _payload(owner, sort)
        found[f"a/{file}"] = (*found.get(f"a/{file}", ()), sort if whole else -1)
    return tuple(sorted(found.items()))


def check_count(db: memcore.Database, told: int, undecided: int) -> list[str]:
    """What all owners added to: every item with states once."""
    count = db.scope().app_state.get(COUNT, 0)
    if told <= count <= told + undecided:
        return []
    return [f"the application counts {count}, expected {told}..{told + undecided}"]
