"""Puts every store of this process behind fail points; see ``tests/faults.py``."""

from __future__ import annotations

import os

import faults

from memcore.store import open_file

open_file.file_access = faults.failing(os.environ[faults.VARIABLE])
