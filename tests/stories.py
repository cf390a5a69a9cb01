"""Stories of compiled graphs, in legs: after each leg the process may end and another go on.

``python -m stories FILE`` tells them over the file, each leg in a process of its own, and prints
what each leg saw.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt

LEGS = 3
MODES = (("sync", False), ("async", False), ("exit", False), ("async", True))
"""When a checkpoint is written, by LangGraph's own names; whether a loop drives the graph."""
Leg = Callable[["Run"], None]


@dataclass
class Run:
    """A compiled graph on one thread, driven by a loop or without one; ``seen`` is what it saw."""

    graph: Any
    thread: str
    durability: str
    loop: asyncio.AbstractEventLoop | None
    seen: list[str]

    @property
    def config(self) -> dict[str, Any]:
        # One task at a time: else it is a matter of luck what is through when another one fails.
        return {"configurable": {"thread_id": self.thread}, "max_concurrency": 1}

    def invoke(self, given: Any, config: Any = None, **options: Any) -> Any:
        """Run the graph, and look at what became of it."""
        options |= {"config": config or self.config, "durability": self.durability}
        if self.loop is None:
            result = self.graph.invoke(given, **options)
        else:
            result = self.loop.run_until_complete(self.graph.ainvoke(given, **options))
        self.seen.append(f"result {plain(result)}")
        self.look()

    def fails(self, given: Any) -> None:
        """Run the graph, which raises."""
        try:
            self.invoke(given)
        except ValueError as exc:
            self.seen.append(f"raised {exc}")
        self.look()

    def history(self) -> list[Any]:
        if self.loop is None:
            return list(self.graph.get_state_history(self.config))

        async def gather() -> list[Any]:
            return [state async for state in self.graph.aget_state_history(self.config)]

        return self.loop.run_until_complete(gather())

    def middle(self) -> Any:
        """The config of a state in the middle of the history; of the only one, if it is."""
        found = self.history()
        return found[len(found) // 2].config

    def update(self, config: Any, values: Any, **options: Any) -> Any:
        if self.loop is None:
            return self.graph.update_state(config, values, **options)
        return self.loop.run_until_complete(self.graph.aupdate_state(config, values, **options))

    def look(self) -> None:
        """See the state, with those of subgraphs."""
        if self.loop is None:
            state = self.graph.get_state(self.config, subgraphs=True)
        else:
            asked = self.graph.aget_state(self.config, subgraphs=True)
            state = self.loop.run_until_complete(asked)
        self.seen.append(f"state {describe(state)}")


def plain(value: Any) -> str:
    """A value in words, without ids that differ from run to run."""
    if isinstance(value, dict):
        return str({name: plain(entry) for name, entry in sorted(value.items())})
    if isinstance(value, list | tuple):
        return str([plain(entry) for entry in value])
    if type(value).__name__ == "Interrupt":
        return f"Interrupt({value.value!r})"
    return repr(value)


def describe(state: Any) -> str:
    tasks = [
        (task.name, task.path, plain(task.interrupts), str(task.error), plain(task.result))
        + ((describe(task.state),) if isinstance(task.state, StateSnapshot) else ())
        for task in state.tasks
    ]
    metadata = {n: (state.metadata or {}).get(n) for n in ("source", "step")}
    return f"{plain(state.values)} next {state.next} {metadata} {tasks}"


# --- the stories ----------------------------------------------------------------------------------


class Words(TypedDict, total=False):
    words: Annotated[list[str], operator.add]
    word: str


def asking() -> tuple[StateGraph, Sequence[Leg]]:
    """Two questions in a node, beside a node that is through by then and must not run again."""

    def ask(_: Words) -> Words:
        first = interrupt({"question": 1})
        return {"words": [f"{first} {interrupt('question 2')}"]}

    graph = StateGraph(Words)
    graph.add_node("ask", ask)
    graph.add_node("beside", lambda _: {"words": ["beside"]})
    graph.add_node("end", lambda state: {"word": "-".join(state["words"])})
    graph.add_edge(START, "ask")
    graph.add_edge(START, "beside")
    graph.add_edge(["ask", "beside"], "end")
    return graph, (
        lambda run: run.invoke({"words": ["start"]}),
        lambda run: run.invoke(Command(resume="answer 1")),
        lambda run: run.invoke(Command(resume={"answer": 2})),
    )


def travelling() -> tuple[StateGraph, Sequence[Leg]]:
    """A fork from the middle, and another from the fork; the first branch stays as it was."""
    graph = StateGraph(Words)
    for name in "abc":
        graph.add_node(
            name, lambda state, name=name: {"words": [name], "word": state["word"] + name}
        )
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("b", "c")

    def fork(run: Run) -> None:
        forked = run.update(run.middle(), {"words": ["forked"], "word": "w"})
        run.invoke(None, forked)

    def again(run: Run) -> None:
        fork(run)
        oldest = run.history()[-1]
        run.invoke(None, oldest.config)
        run.update(run.config, {"words": ["by hand"]}, as_node="b")
        run.invoke(None)

    return graph, (lambda run: run.invoke({"words": [], "word": ""}), fork, again)


def nesting() -> tuple[StateGraph, Sequence[Leg]]:
    """Subgraphs in subgraphs, one of which remembers its own state; a question at the bottom."""
    lowest = StateGraph(Words)
    lowest.add_node("ask", lambda state: {"words": [f"lowest {interrupt(state['word'])}"]})
    lowest.add_edge(START, "ask")
    middle = StateGraph(Words)
    middle.add_node("before", lambda _: {"words": ["middle"]})
    middle.add_node("lowest", lowest.compile())
    middle.add_edge(START, "before")
    middle.add_edge("before", "lowest")
    remembering = StateGraph(Words)
    remembering.add_node("count", lambda state: {"words": [str(len(state["words"]))]})
    remembering.add_edge(START, "count")
    graph = StateGraph(Words)
    graph.add_node("middle", middle.compile())
    graph.add_node("remembering", remembering.compile(checkpointer=True))
    graph.add_edge(START, "middle")
    graph.add_edge("middle", "remembering")

    def resume(run: Run) -> None:
        run.invoke(Command(resume="resumed"))
        run.invoke({"words": ["again"], "word": "second"})

    return graph, (
        lambda run: run.invoke({"words": ["top"], "word": "first"}),
        resume,
        lambda run: run.invoke(Command(resume={"deep": [1, None]})),
    )


def branching() -> tuple[StateGraph, Sequence[Leg]]:
    """Parallel branches and a reducer; one fails at first, the others are not run again."""

    def third(state: Words) -> Words:
        if state.get("word") != "mended":
            raise ValueError(state.get("word"))
        return {"words": ["mended"]}

    graph = StateGraph(Words)
    for name in ("left", "right"):
        graph.add_node(name, lambda _, name=name: {"words": [name]})
        graph.add_edge(START, name)
    graph.add_node("third", third)
    graph.add_edge(START, "third")
    graph.add_node("join", lambda state: {"words": [str(len(state["words"]))]})
    graph.add_edge(["third", "left", "right"], "join")

    def mend(run: Run) -> None:
        run.update(run.config, {"word": "mended"}, as_node=START)
        run.invoke(None)

    return graph, (
        lambda run: run.fails({"words": ["start"], "word": "broken"}),
        lambda run: run.fails(None),
        mend,
    )


def sending() -> tuple[StateGraph, Sequence[Leg]]:
    """Map and reduce with Sends, with a question from some of the tasks."""

    def work(state: Any) -> Words:
        if state["number"] % 3 == 1:
            return {"words": [interrupt(state["number"])]}
        return {"words": [str(state)]}

    graph = StateGraph(Words)
    graph.add_node("plan", lambda _: {"word": "planned"})
    graph.add_node("work", work)
    graph.add_node("reduce", lambda state: {"word": ",".join(state["words"])})
    graph.add_edge(START, "plan")
    graph.add_conditional_edges(
        "plan",
        lambda _: [Send("work", {"number": n, "blob": b"\0" * n}) for n in range(12)],
        ["work"],
    )
    graph.add_edge("work", "reduce")

    def answer(run: Run) -> None:
        answers: dict[str, str] = {}
        [state] = [run.history()[0]]
        for asked in state.interrupts[:2]:
            answers[asked.id] = f"answer {asked.value}"
        run.invoke(Command(resume=answers))

    return graph, (lambda run: run.invoke({"words": []}), answer, answer)


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def say(state: Any) -> Any:
    said = len(state["messages"])
    return {
        "messages": [AIMessage(f"answer {said}", id=f"a{said}", additional_kwargs={"n": [said]})]
    }


def human(number: int) -> Any:
    return {"messages": [HumanMessage(f"question {number} " + "x" * 99, id=f"h{number}")]}


def talking() -> tuple[StateGraph, Sequence[Leg]]:
    """Messages: more of them, one replaced, one removed."""
    graph = StateGraph(Talk)
    graph.add_node("say", say)
    graph.add_edge(START, "say")

    def change(run: Run) -> None:
        run.invoke({"messages": [HumanMessage("another", id="h0"), RemoveMessage(id="a1")]})
        run.invoke(human(7))

    return graph, (
        lambda run: [run.invoke(human(n)) for n in range(2)],
        change,
        lambda run: run.invoke(human(8)),
    )


def extend(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(entry for write in writes for entry in write)]


class Deltas(TypedDict, total=False):
    messages: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=3)]
    notes: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=100)]
    word: str


def delta() -> tuple[StateGraph, Sequence[Leg]]:
    """Channels of deltas, over a snapshot and without any; a question; a fork in front of it."""

    def note(state: Any) -> Any:
        count = len(state["messages"])
        answer = interrupt(count) if count % 4 == 0 else "no answer"
        return {"notes": [{"at": count, "answer": answer}], "word": str(count)}

    graph = StateGraph(Deltas)
    graph.add_node("say", say)
    graph.add_node("note", note)
    graph.add_edge(START, "say")
    graph.add_edge("say", "note")

    def fork(run: Run) -> None:
        run.invoke(Command(resume="an answer"))
        run.invoke(human(2))
        run.invoke(None, run.update(run.middle(), human(9)))

    return graph, (
        lambda run: [run.invoke(human(n)) for n in range(2)],
        fork,
        lambda run: [run.invoke(human(n)) for n in range(20, 23)],
    )


STORIES = (asking, travelling, nesting, branching, sending, talking, delta)


def tell(saver: Any, leg: int) -> dict[str, list[str]]:
    """Tell one leg of every story in every mode; what was seen, by thread."""
    told: dict[str, list[str]] = {}
    loop = asyncio.new_event_loop()
    for story in STORIES:
        for durability, in_loop in MODES:
            thread = f"{story.__name__} {durability} {'in a loop' if in_loop else ''}"
            graph, legs = story()
            compiled = graph.compile(checkpointer=saver)
            run = Run(compiled, thread, durability, loop if in_loop else None, [])
            legs[leg](run)
            run.seen += [f"history {describe(state)}" for state in run.history()]
            told[thread] = run.seen
    loop.close()
    return told


def main(path: str) -> None:
    from memcore.adapters.langgraph import MemcoreSaver

    for leg in range(LEGS):
        child = os.fork()  # a process that has imported all this, and nothing open
        if not child:
            with MemcoreSaver.from_conn_string(path, durability="none", allow_unsafe=True) as saver:
                sys.stdout.write(json.dumps(tell(saver, leg)) + "\n")
                sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"leg {leg} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
