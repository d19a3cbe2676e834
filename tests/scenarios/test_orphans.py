"""Machines of ours that nobody remembers are found; those of others are left alone."""

from __future__ import annotations

import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.fleet import TAG_CLUSTER, TAG_INTENT, TAG_MANAGED_BY, InstanceState
from corald.model.policy import OrphanPolicy
from tests.scenarios.town import CLUSTER, O1, policy_set


def tags(cluster, intent):
    return tuple(
        sorted({TAG_CLUSTER: cluster, TAG_MANAGED_BY: "corald", TAG_INTENT: intent}.items())
    )


@pytest.mark.parametrize("orphans", list(OrphanPolicy))
def test_the_known_stay_the_unknown_are_reported_or_ended_and_the_foreign_untouched(play, orphans):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        known = town.world.status().instances[0].instance
        await town.world.kill()
        now = town.world.clock.now()
        unknown = town.market.place(O1, tags(CLUSTER, f"{CLUSTER}/qwen3-8b/r0-1/0/1"), now)
        foreign = town.market.place(O1, tags("another", "another/qwen3-8b/r0-1/0/1"), now)
        await town.world.advance(600)
        await town.world.start()
        await town.world.until(lambda: town.metric("corald_orphan_instances") == 1, within=60)
        await town.world.advance(180)

        ended = [e.instance for e in town.ledger.effects(Effect.SHUTTING_DOWN)]
        (note,) = town.world.noted("orphan_found")
        assert note.audit
        assert note.field("instance") == unknown.id
        assert [i.instance for i in town.world.status().instances] == [known]
        assert foreign.state is InstanceState.RUNNING
        if orphans is OrphanPolicy.TERMINATE:
            assert ended == [unknown.id]
            await town.world.until(lambda: town.metric("corald_orphan_instances") == 0, within=90)
        else:
            assert ended == []
            assert town.metric("corald_orphan_instances") == 1
            town.market.kill(unknown.id, town.world.clock.now(), reason="by hand")

    play(story, policies=policy_set(orphans=orphans))


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("call", ["provider.launch", "store.commit"])
@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_daemon_killed_around_a_launch_never_has_two_machines_for_one_wish(
    play, call, place, later
):
    async def story(town):
        await town.world.advance(60)
        town.world.points.arm(f"{call}:{place}", after=later)
        town.demand(3.0)
        await town.world.until(lambda: not town.world.alive, within=120)
        await town.world.advance(5)
        await town.world.start()
        await town.ready(3)
        await town.world.advance(600)
        assert len(town.ledger.alive()) == 3
        assert len(town.ledger.effects(Effect.LAUNCHED)) == 3
        assert all(len(ids) == 1 for ids in town.ledger.machines_by_token().values())

    play(story)


def test_a_machine_whose_answer_was_lost_is_found_by_its_token(play):
    async def story(town):
        from corald.errors import OutcomeUnknownError
        from corald.testing.scripted import Fail

        lost = Fail(OutcomeUnknownError("connection reset"), after_effect=True)
        town.cloud.script(Call.LAUNCH, lost)
        town.demand(1.0)
        await town.ready(1)
        assert len(town.ledger.effects(Effect.LAUNCHED)) == 1

    play(story)
