from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corald.core.identity import intent_id, name_of, parse_intent_id, tags_of, token_of

GCE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)
COUNTS = st.integers(0, 10**6)


@given(NAMES, NAMES, NAMES, COUNTS, COUNTS)
def test_an_intent_id_can_be_taken_apart(cluster, model, replica, ordinal, attempt):
    text = intent_id(cluster, model, replica, ordinal, attempt)
    assert parse_intent_id(text) == (replica, ordinal, attempt)


@given(NAMES, NAMES, COUNTS)
def test_a_token_is_short_ascii_and_follows_from_the_intent_alone(cluster, replica, attempt):
    intent = intent_id(cluster, "m", replica, 0, attempt)
    token = token_of(intent)
    assert len(token) <= 64
    assert token.isascii()
    assert token == token_of(intent)
    assert token != token_of(intent_id(cluster, "m", replica, 0, attempt + 1))
    assert token != token_of(intent_id(cluster, "m", replica, 1, attempt))


@given(st.one_of(NAMES, st.sampled_from(["a" * 63, "a" * 23 + "_bcd", "Prod_EU.1", "-x-"])), NAMES)
def test_a_resource_name_is_valid_for_the_strictest_cloud(cluster, replica):
    name = name_of(cluster, intent_id(cluster, "m", replica, 0, 1))
    assert GCE_NAME.fullmatch(name), name


@pytest.mark.parametrize(
    "text", ["", "a/b/c/0", "a/b/c/x/1", "a/b/c/0/-1", "adopted/aws/i-1", "a/b/c/0/1/2"]
)
def test_anything_else_is_no_intent_id(text):
    assert parse_intent_id(text) is None


def test_the_tags_name_the_owner_and_are_sorted():
    tags = tags_of(cluster="c", model="m", replica="r", template="t", intent="i")
    assert list(tags) == sorted(tags)
    assert dict(tags)["corald:cluster"] == "c"
    assert dict(tags)["corald:managed-by"] == "corald"
    assert dict(tags)["corald:intent"] == "i"
