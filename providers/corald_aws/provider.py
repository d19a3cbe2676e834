"""The provider: each method is a few calls of EC2, in every configured region at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from corald.errors import (
    CredentialsRejectedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProviderError,
    ThrottledError,
    TransientError,
)
from corald.model.events import InterruptionNoticed
from corald.model.fleet import TAG_CLUSTER, Instance, LaunchRequest, Listing, TerminateOutcome
from corald.model.market import Market, Offering, OfferingKey, Quota
from corald.plugin import ProviderContext, read_settings
from corald_aws import replies, requests
from corald_aws.clients import Clients
from corald_aws.errors import Operation, meaning_of
from corald_aws.prices import ListPrices, Priced, aws_types
from corald_aws.settings import Settings
from corald_aws.terminate import terminate_in_region

T = TypeVar("T")
_log = logging.getLogger("corald_aws")

IDS_PER_READ = 200
"""Values that one filter may have."""


@dataclass(frozen=True, slots=True)
class _Page:
    """What one region showed, whole or not."""

    instances: list[Instance]
    error: ProviderError | None = None


class AwsProvider:
    """EC2 in one account. It keeps nothing but what can be read again: prices, zones, clients."""

    def __init__(self, settings: Settings, context: ProviderContext) -> None:
        self.name = context.name
        self.unknown_codes: Counter[str] = Counter()
        """Error codes that the table does not know."""
        self._settings = settings
        self._context = context
        self._clients = Clients(settings, context.name)
        self._prices = ListPrices(self._clients, context.catalog)
        self._zone_ids: dict[str, dict[str, str]] = {}
        self._root_devices: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._closed = asyncio.Event()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ProviderContext) -> AwsProvider:
        """Build it without calling AWS, or raise ConfigError."""
        return cls(read_settings(Settings, config, context.name), context)

    async def offerings(self) -> Sequence[Offering]:
        """List what each configured zone sells of the catalogue, at today's prices.

        A region that fails is left out, so that the others can still be used.
        """
        regions = tuple(self._settings.regions)
        answers = await asyncio.gather(
            *(self._counted(self._offerings(region)) for region in regions), return_exceptions=True
        )
        found: list[Offering] = []
        errors: dict[str, ProviderError] = {}
        for region, answer in zip(regions, answers, strict=True):
            if isinstance(answer, ProviderError):
                errors[region] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        if len(errors) == len(regions):
            raise next(iter(errors.values()))
        self._tell(errors)
        return found

    async def quotas(self) -> Sequence[Quota]:
        """EC2 itself does not tell the account's limits: an exceeded one shows when launching."""
        return ()

    async def launch(self, request: LaunchRequest) -> Instance:
        if (TAG_CLUSTER, self._context.cluster) not in request.tags:
            raise InvalidRequestError(
                f"the request must carry {TAG_CLUSTER}={self._context.cluster}"
            )
        call = requests.run_instances(request, self._settings, await self._root_device(request))
        try:
            return await self._counted(self._run(request, call))
        except OutcomeUnknownError as error:
            if error.code != "IdempotentParameterMismatch":
                raise
            known = await self._by_token(request)
            if known is None:
                raise
            return known

    async def terminate(self, instance_ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        """Terminate machines whose tags, read just now, say that they are this cluster's.

        FAILED also stands for what AWS does not show (yet, or any more); PROTECTED for another
        cluster's machine.
        """
        outcomes = dict.fromkeys(instance_ids, TerminateOutcome.FAILED)
        ours: dict[str, list[str]] = {}
        for machine in await self._by_ids(list(outcomes)):
            owner = machine.tag(TAG_CLUSTER)
            if owner == self._context.cluster:
                ours.setdefault(machine.offering.region, []).append(machine.id)
            elif owner is not None:
                outcomes[machine.id] = TerminateOutcome.PROTECTED
        answers = await asyncio.gather(
            *(
                self._counted(terminate_in_region(self._clients, region, ids))
                for region, ids in ours.items()
            ),
            return_exceptions=True,
        )
        errors = []
        for answer in answers:
            if isinstance(answer, BaseException):
                errors.append(answer)
            else:
                outcomes |= answer
        if errors and len(errors) == len(answers):
            raise errors[0]
        return outcomes

    async def list_instances(self) -> Listing:
        """List every region; one that fails makes the listing incomplete."""
        pages = await asyncio.gather(
            *(
                self._listed(region, requests.of_cluster(self._context.cluster))
                for region in self._settings.regions
            )
        )
        errors = [page.error for page in pages if page.error is not None]
        for error in errors:
            if isinstance(error, CredentialsRejectedError):
                raise error
        found = tuple(instance for page in pages for instance in page.instances)
        if errors and not found and len(errors) == len(pages):
            raise errors[0]
        return Listing(found, complete=not errors, note="; ".join(map(str, errors)))

    async def interruptions(self) -> AsyncIterator[InterruptionNoticed]:
        """Wait until closed: EC2 itself announces nothing, EventBridge does, as events."""
        nothing: tuple[InterruptionNoticed, ...] = ()
        await self._closed.wait()
        for notice in nothing:
            yield notice

    async def close(self) -> None:
        self._closed.set()
        self._clients.close()

    # Offerings

    def _tell(self, errors: Mapping[str, ProviderError]) -> None:
        """Log which regions are left out, once for each reason."""
        for region, error in errors.items():
            if self._told.get(region) != (reason := error.code or str(error)):
                _log.warning("%s: nothing is rented in %s for now: %s", self.name, region, error)
                self._told[region] = reason
        self._told = {region: self._told[region] for region in errors}

    async def _offerings(self, region: str) -> list[Offering]:
        now = self._context.clock.now()
        kinds = [kind.name for kind in aws_types(self._context.catalog)]
        zone_ids = await self._zones(region)
        sold, spot, listed = await asyncio.gather(
            self._sold(region, kinds),
            self._spot_prices(region, kinds, zone_ids, now),
            self._prices.of_region(region, now),
        )
        return [
            offering
            for kind, zone in sold
            if kind in listed
            for offering in self._priced(region, zone, kind, listed[kind], spot.get((kind, zone)))
        ]

    def _priced(
        self, region: str, zone: str, kind: str, listed: Priced, spot: float | None
    ) -> Iterable[Offering]:
        def key(market: Market) -> OfferingKey:
            return OfferingKey(self.name, region, zone, kind, market)

        on_demand = listed.usd_per_hour
        yield Offering(key(Market.ON_DEMAND), on_demand, on_demand, priced_at=listed.at)
        if spot is not None:
            yield Offering(key(Market.SPOT), spot, on_demand)

    async def _zones(self, region: str) -> dict[str, str]:
        """Learn zone ids by zone name, once, from the configured subnets; and check those."""
        if region not in self._zone_ids:
            wanted = self._settings.regions[region].subnets
            actual = await self._clients.ec2(
                Operation.READ,
                region,
                lambda client: replies.subnets(
                    client.describe_subnets(SubnetIds=list(wanted.values()))
                ),
            )
            for zone, subnet in wanted.items():
                found = actual[subnet].zone_id if subnet in actual else "none that AWS tells"
                if found != zone:
                    raise InvalidRequestError(
                        f"{subnet} is in zone {found}, not in {zone};"
                        f" mend providers.{self.name}.regions.{region}.subnets"
                    )
            self._zone_ids[region] = {place.zone: place.zone_id for place in actual.values()}
        return self._zone_ids[region]

    async def _sold(self, region: str, kinds: list[str]) -> list[tuple[str, str]]:
        call = requests.type_offerings(self._settings.regions[region].subnets, kinds)
        return await self._all(
            region,
            "describe_instance_type_offerings",
            call,
            lambda pages: sorted(
                (row["InstanceType"], row["Location"])
                for page in pages
                for row in page["InstanceTypeOfferings"]
            ),
        )

    async def _spot_prices(
        self, region: str, kinds: list[str], zone_ids: Mapping[str, str], now: float
    ) -> dict[tuple[str, str], float]:
        call = {
            "InstanceTypes": kinds,
            "ProductDescriptions": ["Linux/UNIX"],
            "StartTime": now,
        }
        return await self._all(
            region,
            "describe_spot_price_history",
            call,
            lambda pages: replies.newest_spot_prices(
                (row for page in pages for row in page["SpotPriceHistory"]), zone_ids
            ),
        )

    async def _all(
        self,
        region: str,
        operation: str,
        call: Mapping[str, Any],
        parse: Callable[[Iterable[Mapping[str, Any]]], T],
    ) -> T:
        """Read all pages of an answer."""

        def read(client: Any) -> T:  # noqa: ANN401 - boto3 has no types
            return parse(client.get_paginator(operation).paginate(**call))

        return await self._clients.ec2(Operation.READ, region, read)

    # Machines

    async def _run(self, request: LaunchRequest, call: dict[str, Any]) -> Instance:
        region = request.offering.region
        kind = self._context.catalog.instance_types.get(request.offering.instance_type)
        subnets = self._subnets(region)
        return await self._clients.ec2(
            Operation.CREATE,
            region,
            lambda client: replies.instance(
                client.run_instances(**call)["Instances"][0], self.name, region, subnets
            ),
            bucket=kind.quota_family if kind else "",
        )

    async def _root_device(self, request: LaunchRequest) -> str | None:
        """Ask for the image's root device, once, where its volume shall have another size."""
        region = self._settings.regions.get(request.offering.region)
        if self._settings.volume_gib is None or region is None:
            return None
        image = request.image if request.image.startswith("ami-") else region.image_id
        if image not in self._root_devices:
            describe = self._clients.ec2(
                Operation.READ,
                request.offering.region,
                lambda client: str(
                    client.describe_images(ImageIds=[image])["Images"][0]["RootDeviceName"]
                ),
            )
            try:
                self._root_devices[image] = await self._counted(describe)
            except TransientError as error:  # nothing has been asked for yet: ask again later
                raise ThrottledError(str(error), code=error.code) from error
        return self._root_devices[image]

    async def _by_token(self, request: LaunchRequest) -> Instance | None:
        page = await self._listed(request.offering.region, requests.by_token(request.token))
        same_zone = [i for i in page.instances if i.offering.zone == request.offering.zone]
        return same_zone[0] if same_zone else None

    async def _by_ids(self, ids: Sequence[str]) -> list[Instance]:
        """Read machines wherever they are; raise only when no region answers.

        A region that is down must not keep machines of another one running.
        """
        pages = await asyncio.gather(
            *(
                self._listed(region, requests.by_ids(ids[start : start + IDS_PER_READ]))
                for region in self._settings.regions
                for start in range(0, len(ids), IDS_PER_READ)
            )
        )
        errors = [page.error for page in pages if page.error is not None]
        if errors and len(errors) == len(pages):
            raise errors[0]
        return [instance for page in pages for instance in page.instances]

    async def _listed(self, region: str, call: dict[str, Any]) -> _Page:
        """Read all pages of one region; keeps those before the one that failed."""
        found: list[Instance] = []
        subnets = self._subnets(region)

        def read(client: Any, call: Mapping[str, Any]) -> tuple[list[Instance], str]:  # noqa: ANN401 - boto3 has no types
            reply = client.describe_instances(**call)
            page = replies.instances(reply, self.name, region, subnets)
            return page, reply.get("NextToken", "")

        while True:
            try:
                describe = partial(read, call=call)
                page, more = await self._counted(
                    self._clients.ec2(Operation.READ, region, describe)
                )
            except ProviderError as error:
                return _Page(found, error)
            found += page
            if not more:
                return _Page(found)
            call = {**call, "NextToken": more}

    def _subnets(self, region: str) -> dict[str, str]:
        return {v: k for k, v in self._settings.regions[region].subnets.items()}

    async def _counted(self, call: Awaitable[T]) -> T:
        """Count the codes that nobody knows."""
        try:
            return await call
        except ProviderError as error:
            if error.code and meaning_of(error.code, 0) is None:
                self.unknown_codes[error.code] += 1
            raise
