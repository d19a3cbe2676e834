"""boto3 clients: one for each region and kind of call, made once, used from bounded pools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader, create_loader

from corald_aws.errors import Operation, translate
from corald_aws.pools import DaemonPool
from corald_aws.settings import Settings

T = TypeVar("T")

WORKERS = {Operation.CREATE: 4, Operation.TERMINATE: 2, Operation.READ: 4}
ATTEMPTS = {Operation.CREATE: 1, Operation.TERMINATE: 1, Operation.READ: 3}
"""The SDK would repeat a create that found no capacity, since EC2 answers that with HTTP 500."""


class Clients:
    """Makes calls off the event loop; each kind of call has threads of its own."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, Operation], Any] = {}
        self._session: boto3.session.Session | None = None
        self._pools = {
            operation: DaemonPool(workers, f"{name}-{operation}")
            for operation, workers in WORKERS.items()
        }

    async def ec2(
        self,
        operation: Operation,
        region: str,
        call: Callable[[Any], T],
        *,
        bucket: str = "",
    ) -> T:
        """Run `call` with the EC2 client of a region; its errors become ProviderErrors."""
        return await self._run("ec2", operation, region, call, bucket)

    async def pricing(self, call: Callable[[Any], T]) -> T:
        """Run `call` with the client of the Price List API."""
        region = self._settings.pricing_region
        return await self._run("pricing", Operation.READ, region, call, "")

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown()
        with self._lock:
            for client in self._made.values():
                client.close()
            self._made.clear()

    async def _run(
        self,
        service: str,
        operation: Operation,
        region: str,
        call: Callable[[Any], T],
        bucket: str,
    ) -> T:
        def job() -> T:
            try:
                return call(self._client(service, region, operation))
            except Exception as error:
                raise translate(operation, error, bucket=bucket) from error

        return await asyncio.get_running_loop().run_in_executor(self._pools[operation], job)

    def _client(self, service: str, region: str, operation: Operation) -> Any:  # noqa: ANN401 - boto3 has no types
        with self._lock:  # a session is not safe to share; clients are
            if self._session is None:
                self._session = _session(self._settings.profile)
            key = (service, region, operation)
            if key not in self._made:
                self._made[key] = self._session.client(
                    service,
                    region_name=region,
                    endpoint_url=self._settings.endpoint_url,
                    config=_config(operation),
                )
            return self._made[key]


@cache
def _models() -> Loader:
    """Parse the API models once for all accounts: EC2's takes a second and tens of megabytes."""
    return create_loader()


def _session(profile: str | None) -> boto3.session.Session:
    core = botocore.session.Session(profile=profile)
    core.register_component("data_loader", _models())
    return boto3.session.Session(botocore_session=core)


def _config(operation: Operation) -> Config:
    return Config(
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS[operation]},
        connect_timeout=5,
        read_timeout=30,
        max_pool_connections=WORKERS[operation],
        # An endpoint in the environment or in ~/.aws would send signed requests elsewhere.
        ignore_configured_endpoint_urls=True,
    )
