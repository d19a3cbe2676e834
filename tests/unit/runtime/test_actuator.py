from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from corald.core.caps import Caps
from corald.errors import (
    CredentialsRejectedError,
    InstanceGoneError,
    InstanceNotFoundError,
    InsufficientCapacityError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    ThrottledError,
    TransientError,
)
from corald.market.faults import Call
from corald.model.events import FailureClass, Launched, LaunchFailed, LaunchUnknown
from corald.model.fleet import TerminateOutcome
from corald.model.plan import Launch, Terminate
from corald.runtime.actuator import Actuator
from corald.runtime.foreign import ForeignProvider
from corald.runtime.gate import Gate
from corald.testing.scripted import Delay, Fail
from tests.unit.core.worlds import running_world
from tests.unit.runtime.rig import Rig, play

OPEN = Caps(None, None, 0.0, 24.0)


class Scene(Rig):
    """An actuator and its gate, without a controller."""

    def __init__(self, *, caps: Caps = OPEN) -> None:
        super().__init__()
        self.wanted = True
        self.gate = Gate("test", caps=lambda: caps, wanted=lambda _: self.wanted)
        cloud = ForeignProvider(self.cloud)
        self.actuator = Actuator({"sim": cloud}, clock=self.clock, gate=self.gate)

    def intent(self, attempt: int = 1, *, durable: bool = True) -> Launch:
        """A launch of an intent of its own, written ahead unless a test says otherwise."""
        (intent,) = running_world(1).engine.state.fleet.live_intents()
        request = replace(intent.request, token=f"t-{attempt}", name=f"n-{attempt}")
        intent = replace(intent, id=f"{intent.id}{attempt}", request=request, instance=None)
        if durable:
            self.gate.committed([intent])
        return Launch(intent.id, request, 1.0, "test")

    async def machines_up(self, count: int) -> list[str]:
        answers = [await self.actuator.launch(self.intent(n)) for n in range(count)]
        return [answer.instance.id for answer in answers]

    def terminate(self, *ids: str) -> Terminate:
        return Terminate("sim", tuple(("", i) for i in ids), voluntary=True, reason="test")


def test_a_machine_that_was_rented_is_told_with_its_intent():
    async def act():
        scene = Scene()
        launch = scene.intent()
        answer = await scene.actuator.launch(launch)
        assert isinstance(answer, Launched)
        assert (answer.intent, answer.instance.token) == (launch.intent, "t-1")

    play(act)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (
            InsufficientCapacityError("m", code="ICE", hours=2.0),
            FailureClass("insufficient-capacity", "m", "ICE", hours=2.0),
        ),
        (
            QuotaExceededError("m", bucket="G", code="Q"),
            FailureClass("quota-exceeded", "m", "Q", bucket="G"),
        ),
        (
            ThrottledError("m", code="T", retry_after=7.0),
            FailureClass("throttled", "m", "T", retry_after=7.0),
        ),
        (InvalidRequestError("m", code="I"), FailureClass("invalid-request", "m", "I")),
        (CredentialsRejectedError("m", code="C"), FailureClass("credentials-rejected", "m", "C")),
        (InstanceGoneError("m", code="G"), FailureClass("instance-gone", "m", "G")),
    ],
)
def test_an_error_that_proves_that_nothing_was_rented_is_a_failure(error, failure):
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LAUNCH, Fail(error))
        answer = await scene.actuator.launch(scene.intent())
        assert isinstance(answer, LaunchFailed)
        assert answer.error == failure

    play(act)


class NewError(InsufficientCapacityError):
    """A kind of error that nobody has thought of."""


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknownError("m"),
        TransientError("m"),
        InstanceNotFoundError("m"),
        ProviderError("m"),
        NewError("m"),
    ],
)
def test_any_other_error_leaves_the_outcome_unknown(error):
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LAUNCH, Fail(error))
        answer = await scene.actuator.launch(scene.intent())
        assert isinstance(answer, LaunchUnknown)
        assert answer.message == "m"

    play(act)


def test_a_call_without_an_answer_in_time_is_unknown():
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LAUNCH, Delay(1000.0))
        begun = scene.clock.now()
        answer = await scene.actuator.launch(scene.intent())
        assert isinstance(answer, LaunchUnknown)
        assert 60.0 <= scene.clock.now() - begun <= 120.0

    play(act)


def test_a_launch_that_the_gate_refuses_never_reaches_the_cloud():
    async def act():
        scene = Scene()
        answer = await scene.actuator.launch(scene.intent(durable=False))
        assert isinstance(answer, LaunchFailed)
        assert answer.error.kind == "blocked"
        scene.wanted = False
        answer = await scene.actuator.launch(scene.intent(2))
        assert answer.error.kind == "withdrawn"
        assert scene.order == []

    play(act)


def test_a_launch_that_had_to_wait_is_judged_when_its_turn_comes():
    async def act():
        scene = Scene()
        calls = [asyncio.create_task(scene.actuator.launch(scene.intent(n))) for n in range(8)]
        await asyncio.sleep(0.5)
        scene.wanted = False
        answers = await asyncio.gather(*calls)
        kinds = [type(a).__name__ for a in answers]
        assert 0 < kinds.count("Launched") < 8
        assert len(scene.order) == kinds.count("Launched")

    play(act)


def test_after_the_stop_no_call_is_made():
    async def act():
        scene = Scene()
        ids = await scene.machines_up(1)
        scene.actuator.stop()
        assert await scene.actuator.launch(scene.intent(7)) is None
        assert await scene.actuator.terminate(scene.terminate(*ids)) is None
        assert (scene.calls("launch"), scene.calls("terminate")) == (1, 0)

    play(act)


def test_calls_are_spread_over_time_whatever_is_wished():
    async def act():
        scene = Scene()
        begun = scene.clock.now()
        await asyncio.gather(*(scene.actuator.launch(scene.intent(n)) for n in range(13)))
        assert scene.clock.now() - begun == pytest.approx(10.0)

    play(act)


def test_every_machine_gets_an_answer_of_its_own_when_given_back():
    async def act():
        scene = Scene()
        first, second = await scene.machines_up(2)
        scene.market.protect(second, protected=True)
        answer = await scene.actuator.terminate(scene.terminate(first, second))
        assert dict(answer.outcomes) == {
            first: TerminateOutcome.REQUESTED,
            second: TerminateOutcome.PROTECTED,
        }

    play(act)


def test_a_machine_whose_tags_were_not_seen_lately_is_not_given_back():
    async def act():
        scene = Scene()
        (machine,) = await scene.machines_up(1)
        answer = await scene.actuator.terminate(scene.terminate("i-foreign"))
        assert answer.outcomes == (("i-foreign", TerminateOutcome.FAILED),)
        await asyncio.sleep(61.0)
        answer = await scene.actuator.terminate(scene.terminate(machine))
        assert answer.outcomes == ((machine, TerminateOutcome.FAILED),)
        assert scene.calls("terminate") == 0

    play(act)


@pytest.mark.parametrize("step", [Delay(1000.0), Fail(TransientError("m"))])
def test_a_terminate_call_that_fails_is_answered_as_to_be_repeated(step):
    async def act():
        scene = Scene()
        (machine,) = await scene.machines_up(1)
        scene.cloud.script(Call.TERMINATE, step)
        answer = await scene.actuator.terminate(scene.terminate(machine))
        assert answer.outcomes == ((machine, TerminateOutcome.FAILED),)
        assert answer.message

    play(act)


def test_many_machines_are_given_back_in_several_calls():
    async def act():
        scene = Scene()
        machines = await scene.machines_up(3)
        ids = [*machines, *(f"i-{n}" for n in range(97))]
        listing = await scene.cloud.list_instances()
        scene.gate.saw([replace(listing.instances[0], id=i) for i in ids], scene.clock.now())
        answer = await scene.actuator.terminate(scene.terminate(*ids))
        assert scene.calls("terminate") == 2
        assert len(answer.outcomes) == 100

    play(act)


def test_a_replacement_does_not_queue_behind_growth():
    async def act():
        scene = Scene()
        growth = [asyncio.create_task(scene.actuator.launch(scene.intent(n))) for n in range(20)]
        await asyncio.sleep(0)
        began = scene.clock.now()
        await scene.actuator.launch(replace(scene.intent(99), urgent=True))
        assert scene.clock.now() - began < 1.0
        await asyncio.gather(*growth)
        assert scene.clock.now() - began >= 15.0

    play(act)
