"""A world of the AWS provider: the real boto3 against the fake, in one process."""

from __future__ import annotations

from dataclasses import replace

from corald.config.catalog import load_catalog
from corald.market.faults import Call, Fault, FaultKind
from corald.market.machines import MarketRules
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald.testing.world import MarketWorld
from corald_aws import AwsProvider
from corald_aws.fake import Account, FakeAws, load_products

REGIONS = ("us-east-1", "us-west-2")
CATALOG = load_catalog()
CODES = {
    "insufficient-capacity": ("InsufficientInstanceCapacity", 500),
    "quota-exceeded": ("VcpuLimitExceeded", 400),
    "throttled": ("RequestLimitExceeded", 503),
    "invalid-request": ("InvalidParameterValue", 400),
    "credentials-rejected": ("UnauthorizedOperation", 403),
    "outcome-unknown": ("InternalError", 500),
    "transient": ("Unavailable", 503),
}


class AwsWorld(MarketWorld):
    """Offers two regions; prices and zones are those of the catalogue."""

    announces_interruptions = False

    def __init__(self):
        account = Account(
            load_products(REGIONS),
            supply=20,
            rules=MarketRules(boot_seconds=30, shutdown_seconds=30),
        )
        self.fake = FakeAws(account)
        clock = ManualClock(start=account.clock.now())
        context = ProviderContext("aws-main", "prod", CATALOG, clock)
        config = self.config()
        super().__init__(
            account.market, clock, "prod", lambda: AwsProvider.from_config(config, context)
        )

    def config(self):
        return {
            "endpoint_url": self.fake.url,
            "test_mode": True,
            "regions": {
                region: {
                    "image_id": "ami-0123456789abcdef0",
                    "security_groups": ["sg-1"],
                    "subnets": self.fake.account.subnets(region),
                }
                for region in REGIONS
            },
        }

    async def advance(self, seconds):
        self.fake.control("advance", seconds=seconds)

    def fail(self, call, kind, *, times=1):
        code, status = CODES.get(kind, (kind, 400))
        fault = Fault(call, FaultKind.ERROR, code=code, status=status, times=times)
        self.market.faults.add(fault)

    def cut_listing(self):
        self.market.faults.add(Fault(Call.LIST, FaultKind.PARTIAL, region=REGIONS[0]))

    def now(self):
        return self.fake.account.clock.now()

    def key(self, offering):
        return replace(offering, provider="aws")

    def close(self):
        self.fake.close()
