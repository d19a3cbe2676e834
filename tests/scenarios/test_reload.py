"""A new configuration takes effect without churn; taking a policy away ends nothing by itself."""

from __future__ import annotations

from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.policy import OrphanModels
from tests.scenarios.town import policy, policy_set

BOTH = policy_set(policy(), policy("qwen3-14b"))


def churn(town):
    return len(town.ledger.calls(Call.LAUNCH)), len(town.ledger.effects(Effect.SHUTTING_DOWN))


def test_an_equal_configuration_changes_nothing(play):
    async def story(town):
        town.demand(3.0)
        await town.ready(3)
        before = churn(town)
        await town.world.reload(policy_set())
        await town.world.advance(900)
        assert churn(town) == before

    play(story)


def test_a_changed_policy_takes_effect_without_a_restart_and_touches_no_other_model(play):
    async def story(town):
        town.demand(2.0)
        town.demand(2.0, "qwen3-14b")
        await town.ready(2)
        await town.ready(2, model="qwen3-14b")
        before = {r.id for r in town.world.status().replicas}
        await town.world.reload(policy_set(policy(min_replicas=4), policy("qwen3-14b")))
        await town.ready(4)
        after = town.world.status().replicas
        assert before < {r.id for r in after}
        assert town.model("qwen3-14b").replicas_ready == 2
        assert town.ledger.effects(Effect.SHUTTING_DOWN) == []

    play(story, policies=BOTH)


def test_a_model_without_a_policy_keeps_its_machines_unless_told_to_drain(play):
    async def story(town):
        town.demand(2.0)
        town.demand(2.0, "qwen3-14b")
        await town.ready(2)
        await town.ready(2, model="qwen3-14b")
        await town.world.reload(policy_set())
        await town.world.advance(3600)
        assert len(town.ledger.alive()) == 4
        await town.world.restart()
        await town.world.advance(3600)
        assert len(town.ledger.alive()) == 4
        await town.world.reload(policy_set(orphan_models=OrphanModels.DRAIN))
        await town.world.advance(3600)
        assert len(town.ledger.alive()) == 2
        assert town.model().replicas_ready == 2

    play(story, policies=BOTH)
