"""How methods of each shape are observed: values, awaited ones, iterators, blocks."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import Any

from memcore.telemetry.observer import Observer, Running, noting
from memcore.telemetry.surface import Operation

__all__ = ["observed"]

_Method = Callable[..., Any]


def observed(method: _Method, operation: Operation) -> _Method:
    """The method of a handle, told of where ``handle.observer`` is set.

    It runs on the observer's plain handle.
    """
    if operation.shape == "iterator":
        is_async = inspect.isasyncgenfunction(method)
        return _async_iterator(method, operation) if is_async else _iterator(method, operation)
    if operation.shape == "block":
        return _block(method, operation)
    is_async = inspect.iscoroutinefunction(method)
    return _awaited(method, operation) if is_async else _value(method, operation)


def _value(method: _Method, operation: Operation) -> _Method:
    takes_args = operation.names_session or operation.measure == "entries"
    of_given = operation.measure == "entries"

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return method(self, *args, **options)
            handle = self
        if options or observer.is_special or takes_args:
            running, token = observer.begin(operation, args, options)
        else:  # the way of most appends
            running = Running()
            token = noting.set(running)
        begun = perf_counter()
        try:
            result = method(handle, *args, **options)
        except BaseException as exc:
            seconds = perf_counter() - begun
            noting.reset(token)
            observer.tell(operation, running, seconds, None, exc)
            raise
        seconds = perf_counter() - begun
        noting.reset(token)
        observer.tell(operation, running, seconds, running.given() if of_given else result)
        return result

    return run


def _awaited(method: _Method, operation: Operation) -> _Method:
    of_given = operation.measure == "entries"

    @wraps(method)
    async def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return await method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return await method(self, *args, **options)
            handle = self
        running, token = observer.begin(operation, args, options)
        begun = perf_counter()
        try:
            result = await method(handle, *args, **options)
        except BaseException as exc:
            seconds = perf_counter() - begun
            noting.reset(token)
            observer.tell(operation, running, seconds, None, exc)
            raise
        seconds = perf_counter() - begun
        noting.reset(token)
        observer.tell(operation, running, seconds, running.given() if of_given else result)
        return result

    return run


class _Counting:
    """An iteration that is under way: its time within, its elements and their bytes."""

    def __init__(self, observer: Observer, operation: Operation, running: Running) -> None:
        self._observer = observer
        self._operation = operation
        self._running = running
        self.seconds = 0.0
        self.count = self.size = 0

    def add(self, element: Any, since: float) -> None:
        self.seconds += perf_counter() - since
        self.count += 1
        if isinstance(element, bytes):
            self.size += len(element)

    def end(self, error: BaseException | None) -> None:
        self._running.items = self.count
        self._running.bytes = self.size or None
        self._observer.tell(self._operation, self._running, self.seconds, None, error)


def _iterator(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = observer.plain
        if handle is None:
            if observer.is_within():
                return method(self, *args, **options)
            handle = self
        counting = _Counting(observer, operation, observer.running(args, options))
        begun = perf_counter()
        try:
            found = method(handle, *args, **options)
        except BaseException as exc:
            counting.seconds = perf_counter() - begun
            counting.end(exc)
            raise
        return _through(found, counting)

    return run


def _through(found: Iterator[Any], counting: _Counting) -> Iterator[Any]:
    error: BaseException | None = None
    try:
        since = perf_counter()
        for element in found:
            counting.add(element, since)
            yield element
            since = perf_counter()
        counting.seconds += perf_counter() - since
    except GeneratorExit:  # the reader has enough
        raise
    except BaseException as exc:
        error = exc
        raise
    finally:
        counting.end(error)


def _async_iterator(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    async def run(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        observer: Observer | None = self.observer
        if observer is None or (observer.plain is None and observer.is_within()):
            async for element in method(self, *args, **options):
                yield element
            return
        handle = self if observer.plain is None else observer.plain
        counting = _Counting(observer, operation, observer.running(args, options))
        error: BaseException | None = None
        try:
            since = perf_counter()
            async for element in method(handle, *args, **options):
                counting.add(element, since)
                yield element
                since = perf_counter()
            counting.seconds += perf_counter() - since
        except GeneratorExit:
            raise
        except BaseException as exc:
            error = exc
            raise
        finally:
            counting.end(error)

    return run


def _block(method: _Method, operation: Operation) -> _Method:
    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        observer: Observer | None = self.observer
        if observer is None:
            return method(self, *args, **options)
        handle = self if observer.plain is None else observer.plain
        try:
            block = method(handle, *args, **options)
        except BaseException as exc:
            observer.tell(operation, observer.running(args, options), 0.0, None, exc)
            raise
        if hasattr(block, "__aenter__"):
            return _AsyncBlock(block, observer, operation)
        return _Block(block, observer, operation)

    return run


class _Ending:
    """A block that is told of when it ends: what counts is its commit."""

    def __init__(self, block: Any, observer: Observer, operation: Operation) -> None:
        self._block = block
        self._observer = observer
        self._operation = operation
        self._entered: Any = None

    @contextmanager
    def _ending(self, error: BaseException | None) -> Iterator[None]:
        running, token = self._observer.begin(self._operation, (), {})
        begun = perf_counter()
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            seconds = perf_counter() - begun
            noting.reset(token)
            receipt = getattr(self._entered, "receipt", None)
            self._observer.tell(self._operation, running, seconds, receipt, error)


class _Block(_Ending):
    def __enter__(self) -> Any:
        self._entered = self._block.__enter__()
        return self._entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        with self._ending(error):
            return self._block.__exit__(kind, error, trace)


class _AsyncBlock(_Ending):
    async def __aenter__(self) -> Any:
        self._entered = await self._block.__aenter__()
        return self._entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        with self._ending(error):
            return await self._block.__aexit__(kind, error, trace)
