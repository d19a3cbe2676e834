"""An explicit zero shrinks a model; silence does not."""

from __future__ import annotations

from corald.market.ledger import Effect
from tests.scenarios.town import policy, policy_set


def test_an_explicit_zero_shrinks_to_the_minimum_after_the_delay(play):
    async def story(town):
        town.demand(10.0)
        await town.ready(10)
        await town.world.advance(1000)
        town.demand(0.0)
        await town.world.advance(590)
        assert town.model().replicas_ready == 10
        await town.ready(2, within=3600)
        await town.world.advance(1200)
        assert town.model().replicas_ready == 2

    play(story, policies=policy_set(policy(min_replicas=2)))


def test_zero_is_reached_only_where_the_policy_allows_it(play):
    async def story(town):
        town.demand(2.0)
        await town.ready(2)
        town.demand(0.0)
        await town.world.advance(3600)
        assert town.model().replicas_ready == 1
        await town.world.reload(policy_set(policy(scale_to_zero_after_seconds=1800.0)))
        await town.ready(0, within=3600)
        await town.world.advance(120)
        assert town.ledger.alive() == ()

    play(story)


def test_silence_holds_what_runs(play):
    async def story(town):
        town.demand(4.0)
        await town.ready(4)
        town.meter.silence("qwen3-8b")
        await town.world.advance(6 * 3600)
        assert town.model().replicas_ready == 4
        assert town.model().stale
        assert town.ledger.effects(Effect.SHUTTING_DOWN) == []

    play(story)
