"""KeyboardInterrupt at any of the points at which CPython delivers one.

Those are where a Python function begins, where a call of a C function or of a type has returned,
and where a loop jumps back: elsewhere the interpreter does not look for signals. A profiler that
raises is called at exactly the first two; for the third a tracer looks at instructions.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["Interrupt", "Point", "points_of"]

Point = tuple[str, str, int, str, str]
"""The file, the function and the instruction, the kind, and the function that called it."""

_JUMPS: Final = frozenset(
    number for name, number in dis.opmap.items() if name.startswith("JUMP_BACKWARD")
)
_TESTS: Final = str(Path(__file__).parent)


@cache
def _jumps(code: CodeType) -> frozenset[int]:
    """The offsets of a function's backward jumps."""
    return frozenset(step.offset for step in dis.get_instructions(code) if step.opcode in _JUMPS)


class Interrupt:
    """Raises KeyboardInterrupt at the first visit of a point, or at the point of a number.

    None: never, but notes all points.

    ``where`` is part of the path of the files that count. Tests do not, nor do destructors: what
    they raise the interpreter drops.
    """

    def __init__(self, at: Point | int | None, where: str = "/memcore/store/") -> None:
        self.at = at
        self.left = at if isinstance(at, int) else 0
        self.fired = False
        self.where = where
        self.points: list[Point] = []
        self._jumping: FrameType | None = None
        # Kept here: the interpreter holds only borrowed ones while a profiler takes them off.
        self._tracer, self._stepper = self._trace, self._step

    def during(self, fn: Callable[[], Any]) -> bool:
        """Whether ``fn`` ended by itself."""
        try:
            self.start()
            fn()
        except KeyboardInterrupt:
            return False
        finally:
            self.stop()
        return True

    def start(self) -> None:
        """Count from here on, in this thread."""
        sys.settrace(self._tracer)
        sys.setprofile(self)

    def stop(self) -> None:
        """Count no more."""
        sys.setprofile(None)
        sys.settrace(None)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Meet a call or a return from C."""
        if event in ("call", "c_return"):
            self._meet(frame, event)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not _jumps(frame.f_code) or not self._counts(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._stepper

    def _step(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "opcode":
            jumped, self._jumping = self._jumping is frame, None
            if jumped:
                self._meet(frame, "jump")
            if frame.f_lasti in _jumps(frame.f_code):
                self._jumping = frame
        return self._stepper

    def _counts(self, frame: FrameType) -> bool:
        code = frame.f_code
        file = code.co_filename
        return self.where in file and not file.startswith(_TESTS) and code.co_name != "__del__"

    def _meet(self, frame: FrameType, kind: str) -> None:
        if not self._counts(frame):
            return
        if isinstance(self.at, int):
            self.left -= 1
            fires = self.left == 0
        else:
            point = _point(frame, kind)
            fires = point == self.at
            if self.at is None:
                self.points.append(point)
        if fires:
            self.fired = True
            self.stop()
            raise KeyboardInterrupt


def _point(frame: FrameType, kind: str) -> Point:
    code, caller = frame.f_code, frame.f_back
    above = "" if caller is None else caller.f_code.co_qualname
    return code.co_filename, code.co_qualname, frame.f_lasti, kind, above


def points_of(fn: Callable[[], Any], where: str) -> list[Point]:
    """The points that ``fn`` meets, in order."""
    counting = Interrupt(None, where)
    counting.during(fn)
    return counting.points
