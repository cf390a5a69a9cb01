"""The extension module; everything else about the package is in pyproject.toml.

Environment variables choose the flavour of the build, see CONTRIBUTING.md:

    MEMCORE_TRACE=1     line tracing for coverage, bounds checks
    MEMCORE_SANITIZE=1  AddressSanitizer and UndefinedBehaviorSanitizer, bounds checks, assertions
    MEMCORE_WERROR=1    every warning of Cython and of the C compiler is an error
    MEMCORE_ANNOTATE=1  also write memcore/_fast.html with the cost of each line
"""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError


def asked(variable: str) -> bool:
    """Whether the environment variable is set to anything but nothing or 0."""
    return os.environ.get(variable, "0") not in {"", "0"}


TRACE = asked("MEMCORE_TRACE")
SANITIZE = asked("MEMCORE_SANITIZE")
WERROR = asked("MEMCORE_WERROR")
ANNOTATE = asked("MEMCORE_ANNOTATE")
CHECKED = TRACE or SANITIZE
COUNTER = ["memcore/_bpe.c", "memcore/_bpe_utf8.c", "memcore/_bpe_vocab.c"]

if not sys.platform.startswith("linux"):
    raise SystemExit(f"memcore runs on Linux, not on {sys.platform}: use a container, or WSL.")
if TRACE and SANITIZE:
    raise SystemExit("MEMCORE_TRACE and MEMCORE_SANITIZE are two builds; set one of them.")

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKED,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": CHECKED,
    "autotestdict": False,  # or the stub would have to list __test__
    "linetrace": TRACE,
    "warn.undeclared": WERROR,
}


def extension() -> Extension:
    """The one extension, with the flags and macros of the chosen flavour."""
    flavour = "trace" if TRACE else "sanitize" if SANITIZE else "release"
    macros: list[tuple[str, str | None]] = [("MEMCORE_FLAVOUR", f'"{flavour}"')]
    compile_args: list[str] = []
    link_args: list[str] = []
    if TRACE:
        compile_args += ["-O1", "-g"]
        macros += [
            ("CYTHON_TRACE", "1"),
            ("CYTHON_TRACE_NOGIL", "1"),
            # Coverage plugins see nothing of what sys.monitoring reports.
            ("CYTHON_USE_SYS_MONITORING", "0"),
        ]
    elif SANITIZE:
        link_args += ["-fsanitize=address,undefined"]
        compile_args += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer"]
        compile_args += [*link_args, "-fno-sanitize-recover=undefined"]
    else:
        compile_args += ["-fvisibility=hidden", "-g0"]
    if WERROR:
        compile_args += ["-Wall", "-Wextra", "-Werror"]
    return Extension(
        "memcore._fast",
        sources=["memcore/_fast.pyx", *COUNTER],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )


class CythonBuild(build_ext):
    """Runs Cython only when an extension is built, not whenever metadata is read."""

    def finalize_options(self) -> None:
        """Translate with the directives of the flavour, whatever the timestamps say."""
        from Cython.Build import cythonize  # noqa: PLC0415
        from Cython.Compiler import Options  # noqa: PLC0415

        Options.warning_errors = WERROR
        self.distribution.ext_modules[:] = cythonize(
            self.distribution.ext_modules,
            compiler_directives=DIRECTIVES,
            force=True,  # a change of flavour touches no source file
            annotate=ANNOTATE,
        )
        super().finalize_options()
        self.force = True

    def build_extension(self, ext: Extension) -> None:
        """Compile; say what a machine without a compiler needs."""
        try:
            super().build_extension(ext)
        except CompileError as error:
            raise SystemExit(
                f"memcore: its C extension cannot be compiled ({error}). It needs a C compiler and "
                "Python's headers: apt-get install gcc libc6-dev python3-dev, or dnf install gcc "
                "python3-devel. An installed wheel needs neither."
            ) from error


setup(ext_modules=[extension()], cmdclass={"build_ext": CythonBuild})
