"""The side channel by which a test changes the world: one JSON object is one order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from corald.market.faults import Call, Fault, FaultKind
from corald.model.fleet import InterruptionKind
from corald.model.market import Market, Quota
from corald_aws.fake.world import PROVIDER, Account

Order = Mapping[str, Any]


def obey(account: Account, order: Order) -> dict[str, Any]:
    """Carry out `order["do"]`; raises KeyError, TypeError or ValueError for a wrong order."""
    arguments = {name: value for name, value in order.items() if name != "do"}
    return _ORDERS[order["do"]](account, **arguments) or {}


def _supply(account: Account, pattern: str, count: int) -> None:
    for item in account.market.matching(pattern):
        account.market.set_supply(item.key, count, account.clock.now())


def _price(account: Account, pattern: str, usd_per_hour: float) -> None:
    for item in account.market.matching(pattern):
        account.market.set_price(item.key, usd_per_hour, account.clock.now())


def _quota(account: Account, region: str, bucket: str, market: str, limit: float) -> None:
    account.market.set_quota(Quota(PROVIDER, region, bucket, Market(market), limit))


def _rules(account: Account, **changes: Any) -> None:  # noqa: ANN401 - fields of MarketRules
    account.market.rules = dataclasses.replace(account.market.rules, **changes)


def _limits(account: Account, **limits: tuple[float, float]) -> None:
    """Replace all rate limits; none named means no limits."""
    _rules(account, limits={Call(name): (x, y) for name, (x, y) in limits.items()})


def _fault(account: Account, call: str, kind: str, **rest: Any) -> None:  # noqa: ANN401 - fields of Fault
    account.market.faults.add(Fault(Call(call), FaultKind(kind), **rest))


def _clear_faults(account: Account) -> None:
    account.market.faults.clear()


def _interrupt(
    account: Account, instance: str, kind: str = "terminate", notice_seconds: float | None = None
) -> dict[str, Any]:
    notice = account.market.interrupt(
        instance,
        account.clock.now(),
        kind=InterruptionKind(kind),
        notice_seconds=notice_seconds,
    )
    return {"deadline": notice.deadline}


def _kill(account: Account, instance: str, reason: str) -> None:
    account.market.kill(instance, account.clock.now(), reason=reason)


def _protect(account: Account, instance: str, protected: bool = True) -> None:  # noqa: FBT001, FBT002 - passed by name
    account.market.protect(instance, protected=protected)


def _stick(account: Account, instance: str, stuck: bool = True) -> None:  # noqa: FBT001, FBT002 - passed by name
    account.market.stick(instance, stuck=stuck)


def _place(account: Account, pattern: str, tags: dict[str, str]) -> dict[str, Any]:
    key = account.market.matching(pattern)[0].key
    machine = account.market.place(key, tuple(sorted(tags.items())), account.clock.now())
    return {"instance": machine.id}


def _advance(account: Account, seconds: float) -> None:
    account.clock.ahead_seconds += seconds
    account.market.advance(account.clock.now())


def _missing_images(account: Account, images: list[str]) -> None:
    account.missing_images = set(images)


def _page_size(account: Account, size: int) -> None:
    account.page_size = size


def _machines(account: Account) -> dict[str, Any]:
    return {
        "machines": [
            {
                "id": machine.id,
                "state": machine.state,
                "token": machine.token,
                "offering": str(machine.offering),
                "tags": dict(machine.tags),
                "details": dict(machine.details),
            }
            for machine, _ in account.market.listing(account.clock.now())
        ]
    }


_ORDERS: Mapping[str, Callable[..., dict[str, Any] | None]] = {
    "supply": _supply,
    "price": _price,
    "quota": _quota,
    "rules": _rules,
    "limits": _limits,
    "fault": _fault,
    "clear-faults": _clear_faults,
    "interrupt": _interrupt,
    "kill": _kill,
    "protect": _protect,
    "stick": _stick,
    "place": _place,
    "advance": _advance,
    "missing-images": _missing_images,
    "page-size": _page_size,
    "machines": _machines,
}
