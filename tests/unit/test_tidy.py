"""The house style, held by a test and not by review."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "memcore").rglob("*.py"))
HOMES = {*MODULES, *(path.parent for path in MODULES)}
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 1200
MODULE_LINES_MIN = 120
FUNCTION_LINES_MAX = 70
BROAD = {"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"}
EMPTY_NAMES = {"utils", "helpers", "manager", "process", "data", "info"}
QUESTIONS = {"What", "Where", "Which", "Who", "Whose", "Whom", "How", "When", "Whether", "Why"}
SHARED_NAMES = {  # of a class: why two have it
    "Compactor": "public, one for threads and one for loops",
    "Overwrite": "the public one of a state, and a change of a session",
    "Reduction": "public, of a state's field and of a compaction",
}
HOLDERS = {  # of a class: why it holds one object and nothing else
    "_Directory": "the path behind the protocol that archives write to",
    "Archiving": "the engine behind the protocol that retention writes to",
    "AsyncBlobStore": "a handle for loops over that for threads",
    "AsyncDatabase": "a handle for loops over that for threads",
    "AsyncGrants": "a handle for loops over that for threads",
    "AsyncLadder": "a handle for loops over that for threads",
    "AsyncMemories": "a handle for loops over that for threads",
    "AsyncProfile": "a handle for loops over that for threads",
    "AsyncQuarantine": "a handle for loops over that for threads",
    "AsyncRollingSummary": "a handle for loops over that for threads",
    "AsyncScope": "a handle for loops over that for threads",
    "FieldNames": "a dict that encodes the names that it lacks",
    "KeyValueView": "a public handle on one snapshot",
    "Retention": "a public handle",
    "_Pop": "a descriptor",
    "SessionState": "a public handle",
    "_LateLogger": "the name of a logger that cannot be loaded yet",
}
SMALL_MODULES = {  # of few lines and one importer: why it is a module
    "memcore/__main__.py": "what 'python -m' runs",
    "memcore/privacy/presidio.py": "needs a package that few install",
    "memcore/testing/faulty/": "what the Python of a child process imports by its name",
    "memcore/tokens/api.py": "needs a package that few install",
    "memcore/cli/": "one verb a module, or a program that starts without the command line",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(autouse=True, scope="module")
def collecting_nothing() -> Iterator[None]:
    """Collections would look through the nodes of all modules again and again."""
    gc.disable()
    yield
    tree.cache_clear()
    gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name(path))


def code_lines(node: Function) -> int:
    """What a function has to be read for; its docstring tells callers, and may be long."""
    docs = ast.get_docstring(node, clean=False)
    return (node.end_lineno or 0) - node.lineno + 1 - (0 if docs is None else docs.count("\n") + 1)


def long_functions(module: ast.Module) -> list[str]:
    return [
        f"line {node.lineno}: {node.name} has {code_lines(node)} lines"
        for node in ast.walk(module)
        if isinstance(node, Function) and code_lines(node) > FUNCTION_LINES_MAX
    ]


def found_in(paths: Iterable[Path], rule: Callable[[ast.Module], Any]) -> dict[str, Any]:
    """What a rule finds, by file; of most files nothing."""
    found = {name(path): rule(tree(path)) for path in paths}
    return {each: findings for each, findings in found.items() if findings}


def calls(module: ast.Module, function: str) -> list[str]:
    return [
        f"line {node.lineno}: {function}"
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and dotted(node.func) == function
    ]


def dotted(node: ast.expr) -> str:
    """A name with its attributes as it is written; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imports_of(module: ast.Module, source: str, imported: str) -> list[str]:
    return [
        f"line {node.lineno}: from {source} import {imported}"
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        and node.module == source
        and any(alias.name == imported for alias in node.names)
    ]


def swallowed(module: ast.Module) -> list[str]:
    """Handlers that catch everything and do nothing about it, and those without a type."""
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or ast.unparse(kind) in BROAD for kind in caught)
        idle = all(
            isinstance(step, ast.Pass | ast.Continue)
            or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
            for step in node.body
        )
        if node.type is None or (broad and idle):
            found.append(f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}")
    return found


def asked(module: ast.Module) -> list[str]:
    """Docstrings, those of fields too, that begin with a question and not with the thing."""
    texts = [
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return [
        f"line {text.lineno}: {str(text.value).strip():.40}"
        for text in texts
        if (str(text.value).split() or [""])[0].strip(",:") in QUESTIONS
    ]


def holders(module: ast.Module) -> Iterator[str]:
    """Classes whose constructor stores its one argument, and does nothing else."""
    for node in ast.walk(module):
        for made in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(made, ast.FunctionDef) or made.name != "__init__":
                continue
            given = made.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            step = made.body[-1]
            if (
                len(names) == 2
                and not (given.vararg or given.kwarg)
                and len(made.body) == 1 + (ast.get_docstring(made) is not None)
                and isinstance(step, ast.Assign | ast.AnnAssign)
                and isinstance(step.value, ast.Name)
                and step.value.id == names[1]
            ):
                yield node.name


def deep_functions(node: ast.AST, above: int = 0) -> Iterator[str]:
    """Functions inside functions inside functions."""
    for child in ast.iter_child_nodes(node):
        inside = above + isinstance(child, Function)
        if inside > 2 and isinstance(child, Function):
            yield f"line {child.lineno}: {child.name}"
        yield from deep_functions(child, inside)


def exported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of each public name in the lazy face of a package; see memcore.faces."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "face":
            for home, names in ast.literal_eval(node.args[1]).items():
                yield from ((home, each.partition("=")[0]) for each in names.split())


def importers() -> dict[str, set[str]]:
    """By module, the modules that import it, for its types too; a face counts as all its users."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        module = tree(path)
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                home = (node.module or "").replace(".", "/")
                for each in (home, *(f"{home}/{alias.name}" for alias in node.names)):
                    found[f"{each}.py"].add(name(path))
        for home, public_name in exported(module):
            found[name(path.with_name(f"{home or public_name}.py"))] |= {name(path), "its users"}
    return found


def public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Definitions that a reader reaches without an underscore; overloads share one docstring."""
    for child in node.body:
        if not isinstance(child, Definition) or child.name.startswith("_"):
            continue
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in child.decorator_list}
        if marks & {"overload", "setter", "deleter", "override"}:
            continue
        yield prefix + child.name, child
        if isinstance(child, ast.ClassDef):
            yield from public(child, f"{prefix}{child.name}.")


def undocumented(module: ast.Module) -> list[str]:
    missing = [
        f"line {node.lineno}: {label}"
        for label, node in public(module)
        if ast.get_docstring(node) is None
    ]
    return missing if ast.get_docstring(module) else ["the module", *missing]


COUNTED = re.compile(r" (?:[a-z]+ )?(?!(?:is|was|has|does)\b)[a-z]+s\b")


def plurals(module: ast.Module) -> list[str]:
    """Counts in texts before a noun in the plural, which is wrong for 1: ``counted`` knows."""
    return [
        f"line {node.lineno}: {ast.unparse(number.value)}{text.value:.20}"
        for node in ast.walk(module)
        if isinstance(node, ast.JoinedStr)
        for number, text in zip(node.values, node.values[1:], strict=False)
        if isinstance(number, ast.FormattedValue) and isinstance(text, ast.Constant)
        if ast.unparse(number.value).startswith("len(")
        or (number.format_spec is not None and "," in ast.unparse(number.format_spec))
        if COUNTED.match(text.value)
    ]


def test_the_tree_was_found() -> None:
    assert ROOT / "memcore" / "errors.py" in MODULES
    assert Path(__file__) in TESTS


def test_modules_are_short() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {each: count for each, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    assert found_in(MODULES, long_functions) == {}


def test_names_say_something() -> None:
    assert [
        name(path)
        for path in MODULES
        if EMPTY_NAMES & {word.strip("_") for word in Path(name(path)).with_suffix("").parts}
    ] == []


def test_only_the_command_line_prints() -> None:
    quiet = [path for path in MODULES if "cli" not in Path(name(path)).with_suffix("").parts]
    assert found_in(quiet, partial(calls, function="print")) == {}


def test_the_command_line_counts_one_in_the_singular() -> None:
    shown = [path for path in MODULES if "cli" in Path(name(path)).with_suffix("").parts]
    assert found_in(shown, plurals) == {}


def test_no_exception_is_swallowed() -> None:
    assert found_in(MODULES, swallowed) == {}


def test_what_is_public_is_documented() -> None:
    assert found_in(MODULES, undocumented) == {}


def test_docstrings_begin_with_the_thing() -> None:
    assert found_in(MODULES, asked) == {}


def test_functions_are_nested_once_at_most() -> None:
    free = ("memcore/adapters/", "memcore/cli/")
    found = found_in(MODULES, lambda module: list(deep_functions(module)))
    assert {each: deep for each, deep in found.items() if not each.startswith(free)} == {}


def test_faces_do_not_hide_modules() -> None:
    hidden = [
        f"{name(path)}: {public_name}"
        for path in MODULES
        for home, public_name in exported(tree(path))
        if home and {path.with_name(public_name), path.with_name(f"{public_name}.py")} & HOMES
    ]
    assert hidden == []


def test_classes_have_names_of_their_own() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and "adapters" not in path.parts:
                homes[node.name].add(name(path))
    assert {each: where for each, where in homes.items() if len(where) > 1}.keys() == set(
        SHARED_NAMES
    )


def test_classes_hold_more_than_one_object() -> None:
    assert {each for path in MODULES for each in holders(tree(path))} == set(HOLDERS)


def test_small_modules_have_several_importers() -> None:
    found = importers()
    assert [
        name(path)
        for path in MODULES
        if path.name != "__init__.py"
        and len(path.read_text(encoding="utf-8").splitlines()) < MODULE_LINES_MIN
        and len(found[name(path)]) <= 1
        and not name(path).startswith(tuple(SMALL_MODULES))
    ] == []


def test_tests_do_not_sleep() -> None:
    named = [path for path in TESTS if "sleep" in path.read_text(encoding="utf-8")]
    assert found_in(named, partial(calls, function="time.sleep")) == {}
    assert found_in(named, partial(imports_of, source="time", imported="sleep")) == {}


def test_tests_are_no_package() -> None:
    assert [name(path) for path in TESTS if path.name == "__init__.py"] == []


UNTIDY = '''
"""Everything that the rules forbid."""
from time import sleep

class Undocumented:
    def method(self): ...
    def _private(self): ...

def swallow():
    """Documented."""
    try:
        print("x")
    except Exception:
        pass
    try:
        time.sleep(1)
    except (ValueError, BaseException):
        "nothing"
    except OSError:
        pass
    try:
        sleep(1)
    except:
        raise

class Holder:
    """What holds one object."""
    def __init__(self, held):
        """Hold it."""
        self.held = held

def outer():
    """Documented."""
    def inner():
        def innermost(): ...

face("package", {"home": "home other=held"})
'''


def test_the_rules_see_what_they_forbid() -> None:
    module = ast.parse(UNTIDY.lstrip())
    long = ast.parse("def long():\n" + "    x = 1\n" * FUNCTION_LINES_MAX)

    assert undocumented(module) == ["line 4: Undocumented", "line 5: Undocumented.method"]
    assert undocumented(ast.parse("x = 1")) == ["the module"]
    assert swallowed(module) == [
        "line 12: except Exception:",
        "line 16: except (ValueError, BaseException):",
        "line 22: except:",
    ]
    assert calls(module, "print") == ["line 11: print"]
    assert calls(module, "time.sleep") == ["line 15: time.sleep"]
    assert imports_of(module, "time", "sleep") == ["line 2: from time import sleep"]
    assert long_functions(long) == [f"line 1: long has {FUNCTION_LINES_MAX + 1} lines"]
    assert long_functions(module) == []
    assert asked(module) == ["line 26: What holds one object."]
    assert list(holders(module)) == ["Holder"]
    assert plurals(
        ast.parse('f"{n:,} items, {len(x)} open calls; {n:,} of {x} was {n} items"')
    ) == [
        "line 1: n items, ",
        "line 1: len(x) open calls; ",
    ]
    assert list(deep_functions(module)) == ["line 34: innermost"]
    assert list(exported(module)) == [("home", "home"), ("home", "other")]
