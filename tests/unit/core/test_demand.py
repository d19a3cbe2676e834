from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import T0, demand, policy

from corald.core.demand import DemandBook, row_amounts, stamp_order
from corald.model.events import DemandObserved, Stamp
from corald.model.policy import Rules
from corald.model.templates import Phase, Serving

RULES = Rules()

SAMPLES = st.builds(
    DemandObserved,
    event_id=st.just("e"),
    source=st.sampled_from(["a", "b"]),
    model=st.sampled_from(["m", "n"]),
    request_rate=st.sampled_from([0.0, 1.0, 5.0]),
    input_tokens=st.sampled_from([None, 100.0, 200.0]),
    output_tokens=st.sampled_from([None, 10.0]),
    window_seconds=st.just(60.0),
    stamp=st.builds(
        Stamp,
        epoch=st.integers(0, 2),
        sequence=st.integers(0, 4),
        at=st.floats(T0, T0 + 900, allow_nan=False),
    ),
)


def book_of(samples: list[DemandObserved]) -> DemandBook:
    book = DemandBook()
    for sample in samples:
        book.merge(sample, RULES)
    return book


@given(st.lists(SAMPLES, max_size=12), st.data())
def test_any_order_with_any_duplicates_gives_the_same_book(samples, data):
    again = data.draw(st.lists(st.sampled_from(samples), max_size=6)) if samples else []
    shuffled = data.draw(st.permutations([*samples, *again]))
    assert book_of(samples).samples == book_of(shuffled).samples


@given(st.lists(SAMPLES, max_size=8), st.lists(SAMPLES, max_size=8))
def test_merging_in_two_parts_is_merging_at_once(first, second):
    later = DemandBook(book_of(first).samples)
    for sample in second:
        later.merge(sample, RULES)
    assert later.samples == book_of([*second, *first]).samples


def test_a_sample_that_changes_nothing_is_told_apart():
    book = DemandBook()
    assert book.merge(demand(5.0), RULES)
    assert not book.merge(demand(5.0), RULES)
    assert not book.merge(demand(9.0, sequence=0, at=T0), RULES)


def test_the_higher_sequence_wins_although_it_carries_an_older_time():
    book = book_of([demand(5.0, sequence=2, at=T0), demand(9.0, sequence=3, at=T0 - 1)])
    assert book.level("m").request_rate == 9.0


def test_a_higher_epoch_wins_over_any_sequence():
    restarted = replace(demand(9.0, sequence=1), stamp=Stamp(1, 1, T0))
    assert book_of([restarted, demand(5.0, sequence=1000)]).level("m").request_rate == 9.0


def test_a_restarted_sequence_without_an_epoch_is_believed_one_era_later():
    reset = RULES.epoch_reset_seconds
    book = book_of([demand(5.0, sequence=1000, at=T0)])
    assert not book.merge(demand(9.0, sequence=1, at=T0 + 1), RULES)
    assert book.merge(demand(9.0, sequence=2, at=T0 + reset), RULES)
    assert stamp_order(Stamp(0, 2, T0 + reset), reset) > stamp_order(Stamp(0, 1000, T0), reset)


def test_the_level_is_the_sum_over_sources_with_tokens_weighted_by_rate():
    book = book_of(
        [
            replace(demand(1.0, source="a"), input_tokens=100.0),
            replace(demand(3.0, source="b", at=T0 + 5), input_tokens=200.0),
            demand(50.0, source="a", model="other"),
        ]
    )
    level = book.level("m")
    assert level.request_rate == 4.0
    assert level.input_tokens == 175.0
    assert (level.oldest_at, level.newest_at) == (T0, T0 + 5)


def test_a_model_that_nobody_reported_has_no_level():
    assert book_of([demand(1.0)]).level("other") is None


def test_a_silent_source_keeps_counting_and_ages_the_level():
    book = book_of([demand(4.0, source="silent"), demand(1.0, source="b", at=T0 + 9000)])
    assert book.level("m").request_rate == 5.0
    assert book.level("m").oldest_at == T0


def test_a_source_that_said_zero_does_not_age_the_level():
    book = book_of([demand(0.0, source="gone"), demand(1.0, source="b", at=T0 + 9000)])
    assert book.level("m").oldest_at == T0 + 9000


def test_a_retired_source_is_forgotten_for_every_model():
    book = book_of([demand(4.0), demand(2.0, model="n"), demand(1.0, source="b")])
    assert book.retire("s")
    assert book.level("m").request_rate == 1.0
    assert book.level("n") is None
    assert not book.retire("s")


def test_a_silent_source_is_forgotten_only_when_the_rules_say_so():
    book = book_of([demand(4.0), demand(1.0, source="b", at=T0 + 900)])
    assert book.forget_silent(T0 + 1e9, None) == ()
    assert book.forget_silent(T0 + 1000, 1000.0) == ()
    assert book.forget_silent(T0 + 1001, 1000.0) == ("s",)
    assert book.level("m").request_rate == 1.0


def test_a_mixed_row_counts_requests_of_the_class_with_headroom():
    level = book_of([demand(10.0)]).level("m")
    assert row_amounts(policy(headroom=0.1), level, 10.0) == {Phase.MIXED: pytest.approx(11.0)}
    longer = replace(level, input_tokens=2000.0, output_tokens=600.0)
    assert row_amounts(policy(), longer, 10.0) == {Phase.MIXED: pytest.approx(25.0)}


def test_split_serving_counts_input_and_output_tokens():
    level = book_of([demand(10.0)]).level("m")
    amounts = row_amounts(policy(serving=Serving.DISAGGREGATED, headroom=0.1), level, 10.0)
    assert amounts == {
        Phase.PREFILL: pytest.approx(11_000.0),
        Phase.DECODE: pytest.approx(2_200.0),
    }


def test_unknown_token_counts_are_those_of_the_workload_class():
    level = book_of([replace(demand(10.0), input_tokens=None, output_tokens=None)]).level("m")
    assert row_amounts(policy(), level, 10.0) == {Phase.MIXED: pytest.approx(10.0)}
