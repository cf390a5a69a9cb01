"""``python -m memcore``: the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from memcore.cli import main

    sys.exit(main())
