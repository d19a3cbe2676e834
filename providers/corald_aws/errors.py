"""What EC2's errors mean to the caller: one pure table over its codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError

from corald.errors import (
    Blame,
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


class Operation(StrEnum):
    """What was tried; an answer that says nothing means something else for each."""

    CREATE = "create"
    TERMINATE = "terminate"
    READ = "read"


class Meaning(StrEnum):
    """The classes of codes."""

    THROTTLE = "throttle"
    CAPACITY = "capacity"
    CAPACITY_LONG = "capacity-long"
    """The zone does not have it, and will not soon."""
    CAPACITY_SUBNET = "capacity-subnet"
    QUOTA = "quota"
    AUTH = "auth"
    CONFIG = "config"
    AMBIGUOUS = "ambiguous"
    CONFLICT = "conflict"
    NOT_FOUND = "not-found"
    GONE = "gone"


LONG_HOURS = 24.0

_CODES: Mapping[Meaning, str] = {
    Meaning.THROTTLE: """
        RequestLimitExceeded EC2ThrottledException SlowDown BandwidthLimitExceeded
        TooManyRequestsException RequestThrottled RequestThrottledException
        PriorRequestNotComplete""",
    Meaning.CAPACITY: """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientReservedInstanceCapacity
        InsufficientVolumeCapacity UnfulfillableCapacity SpotMaxPriceTooLow
        ReservationCapacityExceeded InsufficientCapacityOnHost InsufficientCapacity""",
    Meaning.CAPACITY_LONG: "Unsupported VolumeTypeNotAvailableInZone",
    Meaning.CAPACITY_SUBNET: "InsufficientFreeAddressesInSubnet",
    Meaning.QUOTA: """
        VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded ResourceLimitExceeded
        VolumeLimitExceeded MaxIOPSLimitExceeded MaxFleetCountExceeded""",
    Meaning.AUTH: """
        AuthFailure UnauthorizedOperation InvalidClientTokenId SignatureDoesNotMatch
        MissingAuthenticationToken ExpiredToken ExpiredTokenException IncompleteSignature
        RequestExpired PendingVerification OptInRequired Blocked AccountDisabled AccessDenied
        AccessDeniedException UnrecognizedClientException InvalidSignatureException""",
    Meaning.CONFIG: """
        MissingParameter InvalidBlockDeviceMapping UnsupportedOperation UnknownParameter
        TagPolicyViolation TagLimitExceeded CustomerKeyHasBeenRevoked ZonesMismatched
        ResourceCountExceeded RequestResourceCountExceeded InvalidClientToken
        InvalidInstanceID.Malformed DryRunOperation""",
    Meaning.AMBIGUOUS: """
        InternalError InternalFailure ServerInternal Unavailable ServiceUnavailable RetryableError
        RequestTimeout RequestTimeoutException IdempotentParameterMismatch""",
    Meaning.CONFLICT: "IncorrectInstanceState OperationNotPermitted",
    Meaning.NOT_FOUND: "InvalidInstanceID.NotFound",
    Meaning.GONE: "IdempotentInstanceTerminated",
}
_MEANING = {code: meaning for meaning, codes in _CODES.items() for code in codes.split()}
_PREFIXES = (
    ("Throttling", Meaning.THROTTLE),
    ("AuthFailure.", Meaning.AUTH),
    ("InvalidAMIID.", Meaning.CONFIG),
    ("InvalidAvailabilityZone", Meaning.CONFIG),
    ("InvalidGroup.", Meaning.CONFIG),
    ("InvalidIamInstanceProfile", Meaning.CONFIG),
    ("InvalidKeyPair.", Meaning.CONFIG),
    ("InvalidParameter", Meaning.CONFIG),
    ("InvalidSecurityGroupID.", Meaning.CONFIG),
    ("InvalidSnapshot.", Meaning.CONFIG),
    ("InvalidSubnet", Meaning.CONFIG),
    ("InvalidUserData.", Meaning.CONFIG),
    ("InvalidZone.", Meaning.CONFIG),
)
_PLAIN: Mapping[Meaning | None, type[ProviderError]] = {
    Meaning.THROTTLE: ThrottledError,
    Meaning.CAPACITY: InsufficientCapacityError,
    Meaning.AUTH: CredentialsRejectedError,
    Meaning.CONFIG: InvalidRequestError,
    Meaning.NOT_FOUND: InstanceNotFoundError,
    Meaning.GONE: InstanceGoneError,
}
_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

_UNREADABLE = LookupError | TypeError | ValueError
"""What reading an answer of another shape than expected raises."""


def meaning_of(code: str, http_status: int) -> Meaning | None:
    """Look a code up; None for one that nobody knows and that its HTTP status does not explain."""
    if code in _MEANING:
        return _MEANING[code]
    for prefix, meaning in _PREFIXES:
        if code.startswith(prefix):
            return meaning
    if http_status == 429:
        return Meaning.THROTTLE
    return Meaning.AMBIGUOUS if http_status >= 500 else None


def classify(
    operation: Operation, code: str, http_status: int, message: str, *, bucket: str = ""
) -> ProviderError:
    """Turn an error of EC2 into what the caller may do about it.

    An unknown code is ambiguous. `bucket` is the quota family of the machine that was asked for.
    """
    text = f"{code or http_status}: {message}"
    meaning = meaning_of(code, http_status)
    if meaning in _PLAIN:
        return _PLAIN[meaning](text, code=code)
    match meaning:
        case Meaning.CAPACITY_LONG:
            return InsufficientCapacityError(text, code=code, hours=LONG_HOURS)
        case Meaning.CAPACITY_SUBNET:
            error = InsufficientCapacityError(text, code=code)
            error.blame = Blame.SUBNET
            return error
        case Meaning.QUOTA:
            return QuotaExceededError(text, code=code, bucket=bucket)
        case _:
            return ambiguous(operation, text, code=code)


def ambiguous(operation: Operation, message: str, *, code: str = "") -> ProviderError:
    """Say that nobody knows: only a read certainly had no effect."""
    if operation is Operation.READ:
        return TransientError(message, code=code)
    return OutcomeUnknownError(message, code=code)


def translate(operation: Operation, error: Exception, *, bucket: str = "") -> ProviderError:
    """Turn whatever boto3 raised into a ProviderError.

    What is not an answer of the service (timeout, reset, unreadable XML, missing members) is
    ambiguous.
    """
    if isinstance(error, ClientError):
        said = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        return classify(operation, code, status, message, bucket=bucket)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, _CREDENTIALS):
        return CredentialsRejectedError(text, code=type(error).__name__)
    if isinstance(error, ParamValidationError):
        return InvalidRequestError(text, code="ParamValidation")
    if isinstance(error, BotoCoreError | ResponseParserError | OSError | _UNREADABLE):
        return ambiguous(operation, text, code=type(error).__name__)
    raise error
