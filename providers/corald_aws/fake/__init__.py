"""A fake of the AWS APIs that corald calls, over HTTP, for the real boto3 to speak to.

One marketplace is the account. `python -m corald_aws.fake` runs it as a process of its own;
`FakeAws` runs it in a thread. A POST to `/_control` changes the world; every call and effect goes
to the ledger file, a line at a time. Nothing else is kept.
"""

from __future__ import annotations

from corald_aws.fake.server import FakeAws
from corald_aws.fake.world import Account, load_products

__all__ = ["Account", "FakeAws", "load_products"]
