"""A day of demand, generated or read from a trace."""

from __future__ import annotations

import statistics

import pytest

from corald.errors import ConfigError
from corald.simulation.demand import (
    MINUTES_PER_DAY,
    TRACE_FILE,
    DemandShape,
    TraceColumn,
    demand_events,
    find_data,
    generate_day,
    read_trace_day,
)

MORNING = DemandShape("small", 10.0, 500, 100, peak_hour=9, swing=0.6, bursts_per_day=0, noise=0)
EVENING = DemandShape("large", 2.0, 900, 300, peak_hour=21)

TRACE = """\
t_s,model,rate_rps,rate_norm,in_tok_mean,out_tok_mean,gap_filled,tiled
0,a,100,0.5,546,49,0,0
0,b,7,2.0,1251,213,0,0
86400,a,300,1.5,600,50,0,0
"""


def rates(day, model):
    return [sample.request_rate for sample in day if sample.model == model]


def test_a_seed_fixes_the_day_and_another_seed_changes_it():
    assert generate_day([EVENING], seed=3) == generate_day([EVENING], seed=3)
    assert generate_day([EVENING], seed=3) != generate_day([EVENING], seed=4)


def test_a_models_day_does_not_depend_on_the_other_models():
    alone = generate_day([EVENING], seed=3)
    together = generate_day([MORNING, EVENING], seed=3)
    assert rates(together, "large") == rates(alone, "large")


def test_models_peak_at_their_own_hours_around_their_means():
    small = rates(generate_day([MORNING], seed=1), "small")
    assert len(small) == MINUTES_PER_DAY
    assert small.index(max(small)) == 9 * 60
    assert max(small) == pytest.approx(16.0)
    assert min(small) == pytest.approx(4.0)
    assert statistics.mean(small) == pytest.approx(10.0)


def test_bursts_rise_above_the_wave_and_end():
    bursty = DemandShape("m", 1.0, 1, 1, peak_hour=0, swing=0.0, bursts_per_day=2, noise=0)
    levels = rates(generate_day([bursty], seed=5), "m")
    assert max(levels) > 1.25
    assert 16 <= sum(level > 1 for level in levels) <= 80


def test_samples_are_ordered_by_time_across_models():
    day = generate_day([MORNING, EVENING], seed=1)
    times = [sample.at_seconds for sample in day]
    assert times == sorted(times)
    assert [sample.model for sample in day[:4]] == ["small", "large", "small", "large"]


def test_events_carry_absolute_levels_with_rising_sequences():
    day = generate_day([MORNING, EVENING], seed=1)
    events = list(demand_events(day, source="meter", start_at=1000.0, first_sequence=7))
    assert [event.stamp.sequence for event in events[:3]] == [7, 8, 9]
    assert events[2].stamp.at == 1060.0
    assert len({event.event_id for event in events}) == len(events)


def test_a_trace_is_scaled_by_its_normal_rate_and_cut_to_one_day(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    columns = [TraceColumn("a", "small", 20.0), TraceColumn("b", "large", 1.0)]
    first = read_trace_day(path, columns)
    assert [(s.model, s.request_rate, s.input_tokens) for s in first] == [
        ("small", 10.0, 546.0),
        ("large", 2.0, 1251.0),
    ]
    second = read_trace_day(path, columns[:1], day=1)
    assert [(s.at_seconds, s.request_rate) for s in second] == [(0.0, 30.0)]


@pytest.mark.parametrize("text", ["t_s,model\n0,a\n", "t_s,model,rate_norm\n0,a,much\n", TRACE])
def test_a_trace_that_does_not_fit_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        read_trace_day(path, [TraceColumn("a", "small", 1.0)], day=2)
    with pytest.raises(ConfigError, match=r"missing\.csv"):
        read_trace_day(tmp_path / "missing.csv", [TraceColumn("a", "small", 1.0)])


def test_the_measured_week_is_read_where_it_is_present():
    data = find_data()
    if data is None:
        pytest.skip("no measured data; set CORALD_DATA")
    day = read_trace_day(data / TRACE_FILE, [TraceColumn("m-large", "small", 10.0)], day=3)
    assert len(day) == MINUTES_PER_DAY
    assert 2 < statistics.mean(rates(day, "small")) < 50
