"""The marketplace: one account of one cloud, advanced in time by whoever calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from corald.errors import (
    InstanceGoneError,
    InsufficientCapacityError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    ThrottledError,
)
from corald.market.agenda import Agenda
from corald.market.faults import Call, Fault, Faults, TokenBucket
from corald.market.ledger import Effect, Ledger, Record
from corald.market.machines import Machines, MarketRules
from corald.market.stock import Machine, Notice, Stock, request_hash
from corald.market.supply import Rng
from corald.model.fleet import (
    InstanceState,
    InterruptionKind,
    LaunchRequest,
    Tags,
    TerminateOutcome,
)
from corald.model.market import Offering, OfferingKey, Quota

USER_REQUEST = "user-request"


class Marketplace:
    """Sells machines, bills them, takes them back, and writes everything into its ledger.

    Every method that takes the time first lets the world catch up with it. The controls raise
    KeyError for an offering or a machine that does not exist.
    """

    def __init__(
        self,
        stock: Iterable[Stock],
        *,
        rng: Rng,
        start: float,
        rules: MarketRules | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.faults = Faults(rng)
        self._agenda = Agenda(start)
        self._machines = Machines(
            stock, self._agenda, self.ledger, rng=rng, rules=rules or MarketRules()
        )
        self._shelf = self._machines.shelf
        self._buckets: dict[tuple[Call, str, tuple[float, float]], TokenBucket] = {}

    @property
    def rules(self) -> MarketRules:
        return self._machines.rules

    @rules.setter
    def rules(self, rules: MarketRules) -> None:
        self._machines.rules = rules

    def advance(self, now: float) -> None:
        """Let everything happen that was to happen until `now`."""
        self._agenda.advance(now)

    # What an API calls

    def begin(
        self, call: Call, now: float, *, region: str = "", token: str = "", request: str = ""
    ) -> Fault | None:
        """Record that a call arrived; answers with the fault it falls under.

        Raises:
            ThrottledError: The rate limit of (call, region) is used up.
        """
        self.record_call(call, now, region=region, token=token, request=request)
        limit = self.rules.limits.get(call)
        if limit is not None:
            bucket = self._buckets.setdefault((call, region, limit), TokenBucket(*limit))
            if wait := bucket.take(self._agenda.now):
                error = ThrottledError("rate limit", code="rate-limit", retry_after=wait)
                raise self.refuse(call, error, token=token)
        return self.faults.take(call, region)

    def record_call(
        self, call: Call, now: float, *, region: str = "", token: str = "", request: str = ""
    ) -> None:
        """Record that a call arrived, without counting it against any limit or fault."""
        self.advance(now)
        self.ledger.write(
            self._agenda.now, Record.CALL, call, token=token, request=request, detail=region
        )

    def launch(
        self,
        request: LaunchRequest,
        now: float,
        *,
        digest: str = "",
        details: Mapping[str, str] | None = None,
        doom: str = "",
    ) -> Machine:
        """Rent one machine, or find the one that this token rented in this zone before.

        `digest` stands for the request where an API knows more of it than `request` tells; `doom`
        is the reason for which the machine will not boot.

        Raises:
            OutcomeUnknownError: The token was used with another request (code `token-mismatch`).
            InstanceGoneError: The token's machine is terminated.
            QuotaExceededError, InsufficientCapacityError: Nothing was rented.
        """
        self.advance(now)
        digest = digest or request_hash(request)
        known = self._machines.by_token(request.offering.zone, request.token)
        if known is not None:
            return self._same(known, request, digest)
        machine = self._machines.rent(self._sellable(request), request, digest, details or {})
        machine.doom = doom
        return machine

    def terminate(self, ids: Sequence[str], now: float) -> dict[str, TerminateOutcome]:
        """Shut machines down, each by itself; FAILED means that the API does not know it."""
        self.advance(now)
        return {machine_id: self._terminate(machine_id) for machine_id in ids}

    def listing(self, now: float) -> list[tuple[Machine, Tags]]:
        """List the machines that are visible by now, oldest first, with their visible tags."""
        self.advance(now)
        tags_since = self._agenda.now - self.rules.tag_lag_seconds
        return [
            (machine, machine.tags if machine.launched_at <= tags_since else ())
            for machine in self._machines.visible()
        ]

    def offers(self, now: float) -> list[Offering]:
        """List everything on sale, sold out or not."""
        self.advance(now)
        return [
            Offering(
                key=item.key,
                usd_per_hour=item.usd_per_hour,
                on_demand_usd_per_hour=item.on_demand_usd_per_hour,
                available=item.obtainable if self.rules.reports_availability else None,
            )
            for item in self._shelf
        ]

    def quotas(self) -> tuple[Quota, ...]:
        """List the limits that were set."""
        return self._shelf.quotas()

    def notices(self, after: int, now: float) -> list[Notice]:
        """List the notices numbered above `after` whose machines still exist."""
        self.advance(now)
        return self._machines.notices_after(after)

    def tag(self, machine_id: str, tags: Tags, now: float) -> None:
        """Add or change tags of a machine."""
        self.advance(now)
        machine = self._machines[machine_id]
        machine.tags = tuple(sorted((dict(machine.tags) | dict(tags)).items()))
        self._machines.record(Effect.TAGGED, machine, tags=machine.tags)

    def refuse(self, call: Call, error: ProviderError, *, token: str = "") -> ProviderError:
        """Record that a call is answered with `error`; hands it back to be raised."""
        detail = error.code or type(error).__name__
        self.ledger.write(self._agenda.now, Record.REFUSED, call, token=token, detail=detail)
        return error

    # What a test or a scenario does to the world

    def matching(self, pattern: str = "*") -> list[Stock]:
        """Find stock by a shell-style pattern over `region/zone/type/market`."""
        return self._shelf.matching(pattern)

    def stock(self, key: OfferingKey) -> Stock:
        return self._shelf[key]

    def machine(self, machine_id: str) -> Machine:
        return self._machines[machine_id]

    def set_supply(self, key: OfferingKey, supply: int, now: float) -> None:
        """Fix the supply of an offering; what is held already stays."""
        self.advance(now)
        self._shelf.set_supply(self._shelf[key], supply)
        self._control("supply", f"{key} {supply}")

    def set_price(self, key: OfferingKey, usd_per_hour: float, now: float) -> None:
        """Fix the price of an offering; machines held on it pay it from now on."""
        self.advance(now)
        self._shelf.set_price(self._shelf[key], usd_per_hour)
        self._control("price", f"{key} {usd_per_hour}")

    def set_quota(self, quota: Quota) -> None:
        """Limit the units of a bucket that may be held at a time."""
        self._shelf.set_quota(quota)
        self._control("quota", f"{quota.region} {quota.bucket} {quota.market} {quota.limit}")

    def interrupt(
        self,
        machine_id: str,
        now: float,
        *,
        kind: InterruptionKind = InterruptionKind.TERMINATE,
        notice_seconds: float | None = None,
    ) -> Notice:
        """Announce that a machine is taken away; a rebalance notice takes nothing."""
        self.advance(now)
        return self._machines.notice(self._machines[machine_id], kind, notice_seconds)

    def kill(self, machine_id: str, now: float, *, reason: str) -> None:
        """Take a machine away without notice."""
        self.advance(now)
        self._machines.shut_down(self._machines[machine_id], reason)

    def protect(self, machine_id: str, *, protected: bool) -> None:
        """Make the cloud refuse to terminate a machine."""
        self._machines[machine_id].protected = protected

    def stick(self, machine_id: str, *, stuck: bool) -> None:
        """Keep a machine shutting down for as long as `stuck` holds."""
        machine = self._machines[machine_id]
        machine.stuck = stuck
        if not stuck and machine.state is InstanceState.STOPPING:
            self._machines.end(machine)

    def place(self, key: OfferingKey, tags: Tags, now: float) -> Machine:
        """Put a machine that nobody asked for through the API into the account."""
        self.advance(now)
        request = LaunchRequest("", "placed", key, "", "", tags)
        return self._machines.rent(self._shelf[key], request, request_hash(request), {})

    # Launching

    def _same(self, known: Machine, request: LaunchRequest, digest: str) -> Machine:
        token = request.token
        error: ProviderError
        if known.request != digest:
            error = OutcomeUnknownError(
                f"token {token} was used with another request", code="token-mismatch"
            )
            raise self.refuse(Call.LAUNCH, error, token=token)
        if not known.alive:
            error = InstanceGoneError(
                f"token {token}: {known.id} is terminated", code="token-terminated"
            )
            raise self.refuse(Call.LAUNCH, error, token=token)
        return known

    def _sellable(self, request: LaunchRequest) -> Stock:
        key = request.offering
        item = self._shelf.get(key)
        error: ProviderError
        if item is None:
            error = InsufficientCapacityError(f"{key} is not sold", code="not-sold", hours=24.0)
        elif self._shelf.over_quota(item):
            error = QuotaExceededError(
                f"the {key.market} quota of {item.quota_bucket} in {key.region} is used up",
                bucket=item.quota_bucket,
                code="quota",
            )
        elif item.obtainable == 0:
            error = InsufficientCapacityError(f"{key} is sold out", code="sold-out")
        else:
            return item
        raise self.refuse(Call.LAUNCH, error, token=request.token)

    # Ending

    def _terminate(self, machine_id: str) -> TerminateOutcome:
        machine = self._machines.find(machine_id)
        if machine is None:
            return TerminateOutcome.FAILED
        if not machine.alive:
            return TerminateOutcome.GONE
        if machine.protected:
            return TerminateOutcome.PROTECTED
        self._machines.shut_down(machine, USER_REQUEST)
        return TerminateOutcome.REQUESTED

    # Records

    def _control(self, what: str, detail: str) -> None:
        self.ledger.write(self._agenda.now, Record.CONTROL, what, detail=detail)
