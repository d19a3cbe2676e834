from __future__ import annotations

import pytest
from botocore.exceptions import (
    ConnectTimeoutError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from corald import errors
from corald.errors import Blame
from corald_aws.errors import Operation, classify, translate

# What each code means when a machine is being created; (codes, HTTP status, error).
ON_CREATE = [
    (
        """
        RequestLimitExceeded EC2ThrottledException Throttling ThrottlingException SlowDown
        BandwidthLimitExceeded
        """,
        503,
        errors.ThrottledError,
    ),
    (
        """
        InternalError InternalFailure ServerInternal Unavailable ServiceUnavailable
        RetryableError RequestTimeout
        """,
        500,
        errors.OutcomeUnknownError,
    ),
    (
        """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientVolumeCapacity
        InsufficientReservedInstanceCapacity UnfulfillableCapacity SpotMaxPriceTooLow
        ReservationCapacityExceeded InsufficientCapacityOnHost
        """,
        500,
        errors.InsufficientCapacityError,
    ),
    (
        "Unsupported VolumeTypeNotAvailableInZone InsufficientFreeAddressesInSubnet",
        400,
        errors.InsufficientCapacityError,
    ),
    (
        """
        VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded VolumeLimitExceeded
        ResourceLimitExceeded MaxIOPSLimitExceeded MaxFleetCountExceeded
        """,
        400,
        errors.QuotaExceededError,
    ),
    (
        """
        ResourceCountExceeded RequestResourceCountExceeded InvalidAMIID.NotFound
        InvalidAMIID.Malformed InvalidSubnetID.NotFound InvalidGroup.NotFound
        InvalidParameterValue InvalidParameterCombination MissingParameter
        InvalidUserData.Malformed InvalidBlockDeviceMapping UnsupportedOperation
        UnknownParameter TagPolicyViolation TagLimitExceeded CustomerKeyHasBeenRevoked
        ZonesMismatched InvalidClientToken DryRunOperation InvalidInstanceID.Malformed
        InvalidKeyPair.NotFound InvalidSecurityGroupID.NotFound InvalidSnapshot.NotFound
        InvalidSubnet InvalidAvailabilityZone InvalidZone.NotFound
        """,
        400,
        errors.InvalidRequestError,
    ),
    (
        """
        PendingVerification OptInRequired Blocked AccountDisabled AuthFailure
        UnauthorizedOperation InvalidClientTokenId SignatureDoesNotMatch
        MissingAuthenticationToken ExpiredToken IncompleteSignature RequestExpired
        AuthFailure.ServiceLinkedRoleCreationNotPermitted
        """,
        403,
        errors.CredentialsRejectedError,
    ),
    ("IdempotentParameterMismatch", 400, errors.OutcomeUnknownError),
    ("IdempotentInstanceTerminated", 400, errors.InstanceGoneError),
    ("InvalidInstanceID.NotFound", 400, errors.InstanceNotFoundError),
    ("IncorrectInstanceState OperationNotPermitted", 400, errors.OutcomeUnknownError),
    ("NeverHeardOf", 400, errors.OutcomeUnknownError),
    ("NeverHeardOf", 418, errors.OutcomeUnknownError),
    ("NeverHeardOf", 502, errors.OutcomeUnknownError),
    ("NeverHeardOf", 429, errors.ThrottledError),
]
ROWS = [(code, status, error) for codes, status, error in ON_CREATE for code in codes.split()]


@pytest.mark.parametrize(("code", "status", "error"), ROWS)
def test_a_code_means_what_the_caller_may_do_about_it(code, status, error):
    found = classify(Operation.CREATE, code, status, "the words", bucket="G")
    assert type(found) is error
    assert found.code == code
    assert "the words" in str(found)


@pytest.mark.parametrize(("code", "status", "error"), ROWS)
def test_a_read_is_never_ambiguous(code, status, error):
    found = classify(Operation.READ, code, status, "the words")
    assert type(found) is (errors.TransientError if error is errors.OutcomeUnknownError else error)


def test_quota_names_the_family_and_a_zone_without_the_type_stays_so_for_a_day():
    assert classify(Operation.CREATE, "VcpuLimitExceeded", 400, "", bucket="P").bucket == "P"
    assert classify(Operation.CREATE, "Unsupported", 400, "").hours == 24
    assert classify(Operation.CREATE, "InsufficientInstanceCapacity", 500, "").hours is None


def test_a_full_subnet_is_to_blame_rather_than_the_offering():
    full = classify(Operation.CREATE, "InsufficientFreeAddressesInSubnet", 400, "")
    assert full.blame is Blame.SUBNET
    assert classify(Operation.CREATE, "InsufficientInstanceCapacity", 500, "").blame is (
        Blame.OFFERING
    )


@pytest.mark.parametrize(
    ("raised", "on_create", "on_read"),
    [
        (
            ReadTimeoutError(endpoint_url="u"),
            errors.OutcomeUnknownError,
            errors.TransientError,
        ),
        (
            ConnectTimeoutError(endpoint_url="u"),
            errors.OutcomeUnknownError,
            errors.TransientError,
        ),
        (ConnectionResetError(), errors.OutcomeUnknownError, errors.TransientError),
        (KeyError("Instances"), errors.OutcomeUnknownError, errors.TransientError),
        (NoCredentialsError(), errors.CredentialsRejectedError, errors.CredentialsRejectedError),
        (
            ParamValidationError(report="r"),
            errors.InvalidRequestError,
            errors.InvalidRequestError,
        ),
    ],
)
def test_what_is_not_an_answer_is_ambiguous_unless_it_was_never_sent(raised, on_create, on_read):
    assert type(translate(Operation.CREATE, raised)) is on_create
    assert type(translate(Operation.READ, raised)) is on_read


def test_a_bug_is_not_disguised_as_the_clouds_error():
    with pytest.raises(ZeroDivisionError):
        translate(Operation.READ, ZeroDivisionError())
