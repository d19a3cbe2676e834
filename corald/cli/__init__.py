"""The command line: thin verbs that parse, call and print; each imports what is heavy itself."""

from __future__ import annotations

import sys

from corald import __version__


def main() -> None:
    """Run a verb, and end the process with its exit code."""
    if sys.argv[1:] in (["version"], ["--version"]):
        # Scripts ask this often, and the parser takes longer to import than they like to wait.
        print(f"corald {__version__}")
        return
    from corald.cli.app import run

    sys.exit(run(sys.argv[1:]))
