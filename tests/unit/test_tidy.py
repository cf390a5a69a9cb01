"""The house style, held by a test and not by review."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "memcore").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 1200
FUNCTION_LINES_MAX = 70
BROAD = {"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"}
EMPTY_NAMES = {"utils", "helpers", "manager", "process", "data", "info"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


every_module = pytest.mark.parametrize("path", MODULES, ids=name)
every_test = pytest.mark.parametrize("path", TESTS, ids=name)


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


def calls(module: ast.Module, *functions: str) -> list[str]:
    return [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in functions
    ]


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


def test_the_tree_was_found() -> None:
    assert ROOT / "memcore" / "errors.py" in MODULES
    assert Path(__file__) in TESTS


@every_module
def test_module_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES_MAX


@every_module
def test_functions_are_short(path: Path) -> None:
    assert long_functions(tree(path)) == []


@every_module
def test_names_say_something(path: Path) -> None:
    words = path.relative_to(ROOT).with_suffix("").parts
    assert {word.strip("_") for word in words} & EMPTY_NAMES == set()


@every_module
def test_only_the_command_line_prints(path: Path) -> None:
    if "cli" not in path.relative_to(ROOT).with_suffix("").parts:
        assert calls(tree(path), "print") == []


@every_module
def test_no_exception_is_swallowed(path: Path) -> None:
    assert swallowed(tree(path)) == []


@every_module
def test_what_is_public_is_documented(path: Path) -> None:
    assert undocumented(tree(path)) == []


@every_test
def test_tests_do_not_sleep(path: Path) -> None:
    module = tree(path)
    slept = calls(module, "time.sleep") + imports_of(module, "time", "sleep")
    # A delay is one of the faults that are injected; nobody waits for anything by it.
    assert len(slept) == (path == ROOT / "tests" / "faults.py")


@every_test
def test_tests_are_no_package(path: Path) -> None:
    assert path.name != "__init__.py"


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
