"""`python -m corald` is the command `corald`."""

from __future__ import annotations

from corald.cli import main

if __name__ == "__main__":
    main()
