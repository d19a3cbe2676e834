"""The life of rented machines: boot, notice, shutdown, end, each written into the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from corald.market.agenda import Agenda
from corald.market.faults import Call
from corald.market.ledger import Effect, Ledger, Record
from corald.market.shelf import Shelf
from corald.market.stock import Machine, Notice, Stock
from corald.market.supply import Rng, exponential
from corald.model.fleet import InstanceState, InterruptionKind, LaunchRequest, Tags
from corald.model.market import Market

SPOT_RECLAIM = "spot-interruption"
TOKEN_SECONDS = 48 * 3600.0


@dataclass(frozen=True, slots=True)
class MarketRules:
    """How this cloud behaves; a test swaps them at any time."""

    boot_seconds: float = 60.0
    shutdown_seconds: float = 20.0
    terminated_visible_seconds: float = 3600.0
    instance_lag_seconds: float = 0.0
    """How long the API does not know a new machine."""
    tag_lag_seconds: float = 0.0
    """How long listings miss its tags."""
    notice_seconds: float = 120.0
    interruptions_per_hour: float = 0.0
    """Notices per spot machine while spot is plentiful; 0 also rules out those by scarcity."""
    reports_availability: bool = True
    limits: Mapping[Call, tuple[float, float]] = field(default_factory=dict)
    """Rate limits by kind of call, in each region: (burst, calls per second)."""
    id_prefix: str = "i-"
    id_digits: int = 17


class Machines:
    """All machines of the account, with the tokens they were launched by."""

    def __init__(
        self,
        stock: Iterable[Stock],
        agenda: Agenda,
        ledger: Ledger,
        *,
        rng: Rng,
        rules: MarketRules,
    ) -> None:
        self.rules = rules
        self.shelf = Shelf(
            stock, agenda, on_price=self._repriced, on_supply=self._reclaim_if_scarce
        )
        self._agenda = agenda
        self._ledger = ledger
        self._rng = rng
        self._machines: dict[str, Machine] = {}
        self._tokens: dict[tuple[str, str], Machine] = {}
        self._notices: list[Notice] = []
        self._noticed = 0
        self._launched = 0

    def __getitem__(self, machine_id: str) -> Machine:
        return self._machines[machine_id]

    def find(self, machine_id: str) -> Machine | None:
        """Find a machine that the API knows by now."""
        machine = self._machines.get(machine_id)
        return machine if machine is not None and self._visible(machine) else None

    def visible(self) -> list[Machine]:
        """List what the API knows by now, oldest first."""
        return [machine for machine in self._machines.values() if self._visible(machine)]

    def by_token(self, zone: str, token: str) -> Machine | None:
        """Find the machine of a token, for two days after its end; tokens are zonal."""
        return self._tokens.get((zone, token)) if token else None

    def notices_after(self, number: int) -> list[Notice]:
        return [notice for notice in self._notices if notice.number > number]

    def rent(
        self, item: Stock, request: LaunchRequest, digest: str, details: Mapping[str, str]
    ) -> Machine:
        """Hand a machine out, whether or not there is supply; it boots by itself."""
        self._launched += 1
        number, rules = self._launched, self.rules
        machine = Machine(
            id=f"{rules.id_prefix}{number:0{rules.id_digits}x}",
            token=request.token,
            request=digest,
            offering=item.key,
            tags=tuple(sorted(request.tags)),
            launched_at=self._agenda.now,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            details=details,
        )
        item.held += 1
        self._machines[machine.id] = machine
        if request.token:
            self._tokens[item.key.zone, request.token] = machine
        self.record(Effect.LAUNCHED, machine, tags=machine.tags, usd_per_hour=item.usd_per_hour)
        self._agenda.plan(rules.boot_seconds, lambda: self._boot(machine))
        if item.key.market is Market.SPOT and rules.interruptions_per_hour > 0:
            wait = exponential(self._rng, rules.interruptions_per_hour)
            self._agenda.plan(wait, lambda: self._interrupt_by_chance(machine))
        return machine

    def _boot(self, machine: Machine) -> None:
        if machine.state is not InstanceState.PENDING:
            return
        if machine.doom:
            self.shut_down(machine, machine.doom)
            self.end(machine)
            return
        machine.state = InstanceState.RUNNING
        self.record(Effect.RUNNING, machine)

    def _visible(self, machine: Machine) -> bool:
        return machine.launched_at + self.rules.instance_lag_seconds <= self._agenda.now

    def _interrupt_by_chance(self, machine: Machine) -> None:
        ending = machine.state in (InstanceState.STOPPING, InstanceState.TERMINATED)
        if not ending and machine.reclaim_at is None:
            self.notice(machine, InterruptionKind.TERMINATE)

    def _reclaim_if_scarce(self, item: Stock) -> None:
        if (
            item.held <= item.supply
            or item.key.market is not Market.SPOT
            or self.rules.interruptions_per_hour == 0
        ):
            return
        candidates = [
            machine
            for machine in self._machines.values()
            if machine.offering == item.key
            and machine.state is InstanceState.RUNNING
            and machine.reclaim_at is None
        ]
        if candidates:
            chosen = candidates[int(self._rng.random() * len(candidates))]
            self.notice(chosen, InterruptionKind.TERMINATE)

    def notice(
        self, machine: Machine, kind: InterruptionKind, notice_seconds: float | None = None
    ) -> Notice:
        """Announce that a machine is taken away, and take it in time."""
        deadline = None
        if kind is InterruptionKind.TERMINATE:
            wait = self.rules.notice_seconds if notice_seconds is None else notice_seconds
            deadline = machine.reclaim_at = self._agenda.now + wait
            self._agenda.plan(wait, lambda: self._reclaim(machine))
        self._noticed += 1
        notice = Notice(self._noticed, self._agenda.now, machine.id, kind, deadline)
        self._notices.append(notice)
        self.record(Effect.NOTICED, machine, detail=kind)
        return notice

    def _reclaim(self, machine: Machine) -> None:
        item = self.shelf[machine.offering]
        if item.supply_process is not None:
            item.supply = max(0, item.supply - 1)  # somebody else has it now
        self.shut_down(machine, SPOT_RECLAIM)

    def shut_down(self, machine: Machine, reason: str) -> None:
        """Begin the end of a machine; a second time does nothing."""
        if machine.state in (InstanceState.STOPPING, InstanceState.TERMINATED):
            return
        machine.state = InstanceState.STOPPING
        machine.state_reason = reason
        self.record(Effect.SHUTTING_DOWN, machine, detail=reason)
        self._agenda.plan(self.rules.shutdown_seconds, lambda: self.end(machine))

    def end(self, machine: Machine) -> None:
        """Finish the shutdown of a machine, unless it is stuck."""
        if machine.stuck or not machine.alive:
            return
        machine.state = InstanceState.TERMINATED
        self.shelf[machine.offering].held -= 1
        self.record(Effect.TERMINATED, machine, detail=machine.state_reason)
        self._notices = [notice for notice in self._notices if notice.machine != machine.id]
        self._agenda.plan(
            self.rules.terminated_visible_seconds, lambda: self._machines.pop(machine.id)
        )
        if machine.token:
            token = (machine.offering.zone, machine.token)
            self._agenda.plan(TOKEN_SECONDS, lambda: self._tokens.pop(token))

    def _repriced(self, item: Stock) -> None:
        if item.held == 0:
            return
        for machine in self._machines.values():
            if machine.alive and machine.offering == item.key:
                self.record(Effect.REPRICED, machine, usd_per_hour=item.usd_per_hour)

    def record(
        self,
        what: Effect,
        machine: Machine,
        *,
        tags: Tags = (),
        usd_per_hour: float = 0.0,
        detail: str = "",
    ) -> None:
        """Write what became of a machine into the ledger."""
        self._ledger.write(
            self._agenda.now,
            Record.EFFECT,
            what,
            token=machine.token,
            request=machine.request,
            instance=machine.id,
            offering=machine.offering,
            tags=tags,
            usd_per_hour=usd_per_hour,
            detail=detail,
        )
