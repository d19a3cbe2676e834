"""Terminating several machines at once, although one bad id fails EC2's whole call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corald.errors import ProviderError
from corald.model.fleet import TerminateOutcome
from corald_aws.clients import Clients
from corald_aws.errors import Operation

IDS_PER_CALL = 50

_ONE_SPOILS_ALL: Mapping[str, TerminateOutcome] = {
    "InvalidInstanceID.NotFound": TerminateOutcome.FAILED,
    "InvalidInstanceID.Malformed": TerminateOutcome.FAILED,
    "IncorrectInstanceState": TerminateOutcome.FAILED,
    "OperationNotPermitted": TerminateOutcome.PROTECTED,
}
"""Codes by which one machine fails the call of all, and what they say about that one."""


async def terminate_in_region(
    clients: Clients, region: str, ids: Sequence[str]
) -> dict[str, TerminateOutcome]:
    """Terminate machines of one region with an answer for each.

    Raises:
        ProviderError: Not one of them could be dealt with.
    """
    outcomes: dict[str, TerminateOutcome] = {}
    first: ProviderError | None = None
    for start in range(0, len(ids), IDS_PER_CALL):
        chunk = ids[start : start + IDS_PER_CALL]
        try:
            outcomes |= await _bisect(clients, region, chunk)
        except ProviderError as error:
            outcomes |= dict.fromkeys(chunk, TerminateOutcome.FAILED)
            first = first or error
    if first is not None and set(outcomes.values()) == {TerminateOutcome.FAILED}:
        raise first
    return outcomes


async def _bisect(clients: Clients, region: str, ids: Sequence[str]) -> dict[str, TerminateOutcome]:
    """Halve the ids until the bad ones stand alone; to terminate twice does no harm."""
    try:
        return await clients.ec2(
            Operation.TERMINATE,
            region,
            lambda client: _outcomes(client.terminate_instances(InstanceIds=list(ids))),
        )
    except ProviderError as error:
        if error.code not in _ONE_SPOILS_ALL:
            raise
        if len(ids) == 1:
            return {ids[0]: _ONE_SPOILS_ALL[error.code]}
        half = len(ids) // 2
        outcomes = await _bisect(clients, region, ids[:half])
        return outcomes | await _bisect(clients, region, ids[half:])


def _outcomes(reply: Mapping[str, Any]) -> dict[str, TerminateOutcome]:
    return {row["InstanceId"]: _outcome(row) for row in reply["TerminatingInstances"]}


def _outcome(row: Mapping[str, Any]) -> TerminateOutcome:
    gone = row["CurrentState"]["Name"] == "terminated"
    return TerminateOutcome.GONE if gone else TerminateOutcome.REQUESTED
