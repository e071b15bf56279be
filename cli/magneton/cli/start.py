"""Where the program begins. Next to nothing is imported before Ctrl-C is heard: loading the command line takes a moment."""

from __future__ import annotations

import sys

from magneton.schemas.errors import EXIT_INTERRUPTED


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from magneton.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("magneton: interrupted\n")
        return EXIT_INTERRUPTED
    return run()
