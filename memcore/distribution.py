"""Distributions that own files of the package: several on PyPI install a package ``memcore``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Final

__all__ = [
    "NAME",
    "foreign_owners",
    "warn_of_foreign_owners",
]


NAME: Final = "memcore-db"
"""Name of memcore's own distribution; its import name is older than its first release."""
_METADATA: Final = ".dist-info"


def foreign_owners(package: str) -> Iterator[str]:
    """Yield the names of other distributions that have files in the package's directory.

    Of two that are installed beside each other, the later one has overwritten files of the first.

    Args:
        package: directory of the package; in a checkout nothing is installed beside it.
    """
    beside = os.path.dirname(package)
    try:
        names = [name for name in os.listdir(beside) if name.startswith("memcore")]
    except OSError:
        return  # a package in an archive
    for name in names:
        owner = name.removesuffix(_METADATA).rpartition("-")[0].replace("_", "-")
        if name.endswith(_METADATA) and owner != NAME and _has_files(os.path.join(beside, name)):
            yield owner


def _has_files(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "RECORD"), encoding="utf-8", errors="replace") as record:
            return any(line.startswith("memcore/") for line in record)
    except OSError:
        return False


def warn_of_foreign_owners(package: str) -> None:
    """Warn if another distribution has files in the package's directory."""
    found = sorted(foreign_owners(package))
    if found:
        warnings.warn(
            f"the distribution {', '.join(found)} installs a package named memcore, too, and may "
            f"have overwritten files of {NAME}: use one of them in an environment "
            f"(pip uninstall {' '.join(found)}; pip install --force-reinstall {NAME})",
            RuntimeWarning,
            stacklevel=3,
        )
