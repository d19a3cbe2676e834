from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import running_world

from corald.core.ledger import SpendLedger, day_of
from corald.model.state import Spend

MIDNIGHT = 1_700_006_400.0  # 2023-11-15T00:00:00Z


def machine(usd_per_hour: float):
    (intent,) = running_world(1).engine.state.fleet.live_intents()
    return replace(intent, usd_per_hour=usd_per_hour)


def test_spend_is_the_integral_of_price_over_time():
    ledger = SpendLedger((), MIDNIGHT)
    ledger.accrue([machine(6.0)], MIDNIGHT + 600)
    ledger.accrue([machine(6.0), machine(3.0)], MIDNIGHT + 1200)
    ledger.accrue([], MIDNIGHT + 9000)
    assert ledger.today(MIDNIGHT + 9000) == pytest.approx(1.0 + 1.5)


def test_an_interval_over_midnight_is_split_between_the_days():
    ledger = SpendLedger((), MIDNIGHT - 1800)
    ledger.accrue([machine(2.0)], MIDNIGHT + 3600)
    assert ledger.today(MIDNIGHT - 1) == pytest.approx(1.0)
    assert ledger.today(MIDNIGHT) == pytest.approx(2.0)
    rows = {s.day: s.usd for s in ledger.take_changes()}
    assert rows == {"2023-11-14": pytest.approx(1.0), "2023-11-15": pytest.approx(2.0)}


def test_a_clock_that_steps_back_neither_refunds_nor_counts_twice():
    ledger = SpendLedger((), MIDNIGHT)
    ledger.accrue([machine(6.0)], MIDNIGHT + 600)
    ledger.accrue([machine(6.0)], MIDNIGHT + 300)
    ledger.accrue([machine(6.0)], MIDNIGHT + 600)
    assert ledger.total == pytest.approx(1.0)


def test_what_was_stored_counts_on_after_a_restart():
    ledger = SpendLedger([Spend(day_of(MIDNIGHT), 5.0)], MIDNIGHT + 60)
    ledger.accrue([machine(6.0)], MIDNIGHT + 660)
    assert ledger.today(MIDNIGHT + 660) == pytest.approx(6.0)


def test_rows_are_stored_at_most_once_a_minute_and_only_when_money_was_spent():
    ledger = SpendLedger((), MIDNIGHT)
    ledger.accrue([machine(6.0)], MIDNIGHT + 30)
    assert ledger.take_changes() == ()
    ledger.accrue([machine(6.0)], MIDNIGHT + 60)
    assert ledger.take_changes() == (Spend("2023-11-15", pytest.approx(0.1)),)
    ledger.accrue([], MIDNIGHT + 600)
    assert ledger.take_changes() == ()


def test_the_hours_left_end_at_midnight_utc():
    ledger = SpendLedger((), MIDNIGHT)
    assert ledger.hours_left_today(MIDNIGHT) == 24.0
    assert ledger.hours_left_today(MIDNIGHT - 1800) == 0.5


def test_every_day_of_a_long_downtime_is_stored():
    ledger = SpendLedger((), MIDNIGHT)
    ledger.accrue([machine(1.0)], MIDNIGHT + 5 * 86400)
    rows = {s.day: s.usd for s in ledger.take_changes()}
    assert [usd for usd in rows.values() if usd] == pytest.approx([24.0] * 5)
