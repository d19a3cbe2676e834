"""Run the fake as a process: it prints its URL as one JSON line, and serves until it is killed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path

from corald_aws.fake.server import FakeAws
from corald_aws.fake.world import Account, load_products


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    options = _options()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    # Line buffered: a line is outside as soon as it is written.
    with Path(options.ledger).open("a", buffering=1, encoding="utf-8") as ledger:
        account = Account(
            load_products(options.regions.split(","), options.catalog),
            supply=options.supply,
            seed=options.seed,
            sink=ledger.write,
        )
        account.market.rules = dataclasses.replace(
            account.market.rules, boot_seconds=options.boot_seconds
        )
        with FakeAws(account, port=options.port) as fake:
            sys.stdout.write(json.dumps({"url": fake.url}) + "\n")
            sys.stdout.flush()
            stop.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corald_aws.fake", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--ledger", required=True, help="file that the ledger is appended to")
    parser.add_argument("--regions", default="us-east-1", help="separated by commas")
    parser.add_argument("--catalog", type=Path, help="directory with instances_aws.toml")
    parser.add_argument("--supply", type=int, default=8, help="machines per offering")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--boot-seconds", type=float, default=2.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
