from __future__ import annotations

import random
from dataclasses import replace

import pytest

from corald.errors import (
    InstanceGoneError,
    InsufficientCapacityError,
    OutcomeUnknownError,
    QuotaExceededError,
    ThrottledError,
)
from corald.market.faults import Call, Fault, FaultKind
from corald.market.ledger import Effect, Ledger, Record
from corald.market.machines import SPOT_RECLAIM, MarketRules
from corald.market.marketplace import Marketplace
from corald.market.stock import Stock
from corald.market.supply import PriceProcess, SupplyProcess
from corald.model.fleet import InstanceState, InterruptionKind, LaunchRequest, TerminateOutcome
from corald.model.market import Market, OfferingKey, Quota

START = 1000.0
SPOT = OfferingKey("p", "r1", "r1-a", "big", Market.SPOT)
ON_DEMAND = replace(SPOT, market=Market.ON_DEMAND)
ELSEWHERE = replace(SPOT, zone="r1-b")


def a_market(**rules):
    stock = [
        Stock(SPOT, 1.0, 3.0, supply=2, quota_bucket="P", quota_units=8),
        Stock(ON_DEMAND, 3.0, 3.0, supply=2, quota_bucket="P", quota_units=8),
        Stock(ELSEWHERE, 1.0, 3.0, supply=2, quota_bucket="P", quota_units=8),
    ]
    return Marketplace(stock, rng=random.Random(1), start=START, rules=MarketRules(**rules))


def a_request(token="t", offering=SPOT, user_data=""):
    return LaunchRequest(token, "name", offering, "ami", user_data, (("a", "b"),))


def state(market, machine, now):
    market.advance(now)
    return market.machine(machine.id).state


def test_a_machine_boots_runs_shuts_down_and_is_forgotten():
    market = a_market(boot_seconds=60, shutdown_seconds=20, terminated_visible_seconds=100)
    machine = market.launch(a_request(), START)
    assert state(market, machine, START + 59) is InstanceState.PENDING
    assert state(market, machine, START + 60) is InstanceState.RUNNING
    market.terminate([machine.id], START + 100)
    assert state(market, machine, START + 119) is InstanceState.STOPPING
    assert state(market, machine, START + 120) is InstanceState.TERMINATED
    assert len(market.listing(START + 219)) == 1
    assert market.listing(START + 220) == []
    assert market.terminate([machine.id], START + 221) == {machine.id: TerminateOutcome.FAILED}


def test_a_machine_terminated_while_booting_never_runs():
    market = a_market(boot_seconds=60, shutdown_seconds=20)
    machine = market.launch(a_request(), START)
    market.terminate([machine.id], START + 10)
    assert state(market, machine, START + 500) is InstanceState.TERMINATED
    assert [e.what for e in market.ledger.effects()] == [
        Effect.LAUNCHED,
        Effect.SHUTTING_DOWN,
        Effect.TERMINATED,
    ]


def test_supply_is_finite_and_comes_back_when_a_machine_has_ended():
    market = a_market(shutdown_seconds=20)
    first = market.launch(a_request("t-1"), START)
    market.launch(a_request("t-2"), START)
    with pytest.raises(InsufficientCapacityError):
        market.launch(a_request("t-3"), START)
    market.terminate([first.id], START + 1)
    with pytest.raises(InsufficientCapacityError):  # it is still shutting down
        market.launch(a_request("t-3"), START + 20)
    market.launch(a_request("t-3"), START + 21)
    assert [o.available for o in market.offers(START + 21)] == [0, 2, 2]


def test_a_token_is_zonal_and_bound_to_its_request():
    market = a_market()
    machine = market.launch(a_request(), START)
    assert market.launch(a_request(), START + 1) is machine
    with pytest.raises(OutcomeUnknownError):
        market.launch(a_request(user_data="other"), START + 2)
    assert market.launch(a_request(offering=ELSEWHERE), START + 3) is not machine
    assert market.ledger.machines_by_token() == {"t": (machine.id, market.listing(START)[1][0].id)}


def test_a_token_is_remembered_for_two_days_after_the_end():
    market = a_market(shutdown_seconds=0)
    machine = market.launch(a_request(), START)
    market.terminate([machine.id], START)
    with pytest.raises(InstanceGoneError):
        market.launch(a_request(), START + 47 * 3600)
    assert market.launch(a_request(), START + 49 * 3600).id != machine.id


def test_a_quota_counts_units_of_its_bucket_region_and_market():
    market = a_market()
    market.set_quota(Quota("p", "r1", "P", Market.SPOT, 16))
    market.launch(a_request("t-1"), START)
    market.launch(a_request("t-2", ELSEWHERE), START)
    with pytest.raises(QuotaExceededError) as caught:
        market.launch(a_request("t-3"), START)
    assert caught.value.bucket == "P"
    market.launch(a_request("t-4", ON_DEMAND), START)


def test_a_rate_limit_refills_with_time_and_is_regional():
    market = a_market(limits={Call.LAUNCH: (2, 0.5)})
    for _ in range(2):
        market.begin(Call.LAUNCH, START, region="r1")
    with pytest.raises(ThrottledError) as caught:
        market.begin(Call.LAUNCH, START, region="r1")
    assert caught.value.retry_after == 2
    market.begin(Call.LAUNCH, START, region="r2")
    market.begin(Call.LAUNCH, START + 2, region="r1")
    assert len(market.ledger.calls(Call.LAUNCH)) == 5
    assert len(market.ledger.refusals(Call.LAUNCH)) == 1


def test_a_noticed_machine_runs_until_its_deadline_and_then_ends():
    market = a_market(boot_seconds=0, shutdown_seconds=0)
    machine = market.launch(a_request(), START)
    notice = market.interrupt(machine.id, START + 10, notice_seconds=120)
    assert market.notices(0, START + 11) == [notice]
    assert market.notices(notice.number, START + 11) == []
    assert state(market, machine, START + 129) is InstanceState.RUNNING
    assert state(market, machine, START + 130) is InstanceState.TERMINATED
    assert machine.state_reason == SPOT_RECLAIM
    assert market.notices(0, START + 131) == []


def test_a_rebalance_notice_takes_nothing():
    market = a_market(boot_seconds=0)
    machine = market.launch(a_request(), START)
    notice = market.interrupt(machine.id, START, kind=InterruptionKind.REBALANCE)
    assert notice.deadline is None
    assert state(market, machine, START + 9999) is InstanceState.RUNNING


def test_spot_machines_are_interrupted_at_the_rate_of_the_rules():
    market = a_market(interruptions_per_hour=1.0, boot_seconds=0, shutdown_seconds=0)
    market.set_supply(SPOT, 2000, START)
    for number in range(2000):
        market.launch(a_request(f"t-{number}"), START)
    market.launch(a_request("t-od", ON_DEMAND), START)
    market.advance(START + 3600)
    noticed = market.ledger.effects(Effect.NOTICED)
    assert len(noticed) == pytest.approx(2000 * (1 - 2.71828**-1), rel=0.05)
    assert all(entry.offering == SPOT for entry in noticed)


def test_when_spot_runs_short_machines_are_reclaimed_but_on_demand_ones_stay():
    falling = [SupplyProcess(0.0, 60.0, random.Random(n)) for n in (1, 2)]
    stock = [
        Stock(SPOT, 1.0, 3.0, supply=5, supply_process=falling[0]),
        Stock(ON_DEMAND, 3.0, 3.0, supply=5, supply_process=falling[1]),
    ]
    rules = MarketRules(interruptions_per_hour=1e-9, boot_seconds=0, shutdown_seconds=0)
    market = Marketplace(stock, rng=random.Random(1), start=START, rules=rules)
    for number in range(5):
        market.launch(a_request(f"s-{number}"), START)
        market.launch(a_request(f"o-{number}", ON_DEMAND), START)
    market.advance(START + 36000)
    alive = [m.offering.market for m, _ in market.listing(START + 36000) if m.alive]
    assert alive == [Market.ON_DEMAND] * 5


def test_the_ledger_integrates_prices_by_the_second_from_launch_to_end():
    market = a_market(boot_seconds=100, shutdown_seconds=100)
    machine = market.launch(a_request(), START)
    market.set_price(SPOT, 2.0, START + 1800)
    market.launch(a_request("t-od", ON_DEMAND), START + 1800)
    assert market.ledger.usd_per_hour == 5.0
    market.terminate([machine.id], START + 3500)
    market.advance(START + 7200)
    first = (1800 * 1.0 + 1800 * 2.0) / 3600
    second = 5400 * 3.0 / 3600
    assert market.ledger.usd(START + 7200) == pytest.approx(first + second)
    assert market.ledger.peak_usd_per_hour == 5.0


def test_an_on_demand_price_is_also_what_spot_refers_to():
    market = a_market()
    market.set_price(ON_DEMAND, 4.0, START)
    by_key = {offer.key: offer for offer in market.offers(START)}
    assert by_key[SPOT].on_demand_usd_per_hour == 4.0
    assert by_key[ELSEWHERE].on_demand_usd_per_hour == 3.0


def test_a_ledger_read_back_from_its_lines_is_the_same():
    lines = []
    market = a_market()
    market.ledger._sink = lines.append
    market.begin(Call.LAUNCH, START, token="t", request="h")
    machine = market.launch(a_request(), START)
    market.set_price(SPOT, 2.0, START + 10)
    with pytest.raises(OutcomeUnknownError):
        market.launch(a_request(user_data="x"), START + 20)
    market.terminate([machine.id], START + 30)
    market.advance(START + 1000)
    read = Ledger.read([*lines, '{"number": 99, "at": 1, "rec'])
    assert read.entries == market.ledger.entries
    assert read.usd(START + 1000) == market.ledger.usd(START + 1000) > 0
    assert [e.record for e in read.entries[:2]] == [Record.CALL, Record.EFFECT]
    assert market.ledger.dump() == "".join(lines)


def test_a_bounded_ledger_forgets_entries_but_not_money():
    whole, bounded = Ledger(), Ledger(keep=3)
    for ledger in (whole, bounded):
        for number in range(10):
            ledger.write(
                START + number, Record.EFFECT, "launched", instance=str(number), usd_per_hour=1.0
            )
    assert len(bounded.entries) == 3
    assert bounded.usd(START + 100) == whole.usd(START + 100)
    assert bounded.entries[-1].number == 10


def test_faults_are_used_up_in_order_and_skip_what_they_shall_skip():
    market = a_market()
    market.faults.add(Fault(Call.LIST, FaultKind.ERROR, code="a", skip=1, times=2))
    market.faults.add(Fault(Call.LIST, FaultKind.ERROR, code="b", region="r2"))
    found = [market.begin(Call.LIST, START, region=r) for r in ("r1", "r1", "r1", "r1", "r2")]
    assert [fault.code if fault else None for fault in found] == [None, "a", "a", None, "b"]
    assert market.begin(Call.LAUNCH, START) is None


def test_half_of_the_calls_fail_when_told_so():
    market = a_market()
    market.faults.add(Fault(Call.LIST, FaultKind.ERROR, times=None, share=0.5))
    hit = sum(market.begin(Call.LIST, START) is not None for _ in range(2000))
    assert hit == pytest.approx(1000, abs=100)


def test_time_does_not_run_back():
    market = a_market(boot_seconds=10)
    machine = market.launch(a_request(), START + 100)
    market.advance(START)
    assert state(market, machine, START + 109) is InstanceState.PENDING
    assert machine.launched_at == START + 100


def test_a_stuck_machine_ends_once_it_is_released():
    market = a_market(shutdown_seconds=10)
    machine = market.launch(a_request(), START)
    market.stick(machine.id, stuck=True)
    market.terminate([machine.id], START)
    assert state(market, machine, START + 9999) is InstanceState.STOPPING
    market.stick(machine.id, stuck=False)
    assert machine.state is InstanceState.TERMINATED


def test_supply_reverts_to_its_mean_and_scarce_things_are_often_sold_out():
    def levels(mean, floor=0):
        process = SupplyProcess(mean, 1.0, random.Random(7), floor)
        level, at, found = process.start(), 0.0, []
        for _ in range(20000):
            wait, change = process.step(level)
            found.append((wait, level))
            level, at = level + change, at + wait
        return [(wait / at, level) for wait, level in found]

    plenty, scarce, steady = levels(20), levels(0.5), levels(20, floor=10)
    assert sum(w * x for w, x in plenty) == pytest.approx(20, rel=0.1)
    assert sum(w for w, x in scarce if x == 0) == pytest.approx(2.71828**-0.5, rel=0.1)
    assert min(x for _, x in steady) >= 10
    assert sum(w * x for w, x in steady) == pytest.approx(20, rel=0.1)


def test_a_spot_price_wanders_around_the_typical_one_below_on_demand():
    process = PriceProcess(1.0, 1.25, 0.15, random.Random(3))
    price, prices = process.start(), []
    for _ in range(20000):
        _, price = process.step(price)
        prices.append(price)
    assert max(prices) == 1.25
    assert sum(prices) / len(prices) == pytest.approx(1.0, rel=0.05)
    assert PriceProcess(1.0, 2.0, 0.0, random.Random(3)).step(1.0) is None
