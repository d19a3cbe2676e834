"""Every exception that corald raises on purpose, named by what the receiver may do about it."""

from __future__ import annotations

from enum import StrEnum


class CoraldError(Exception):
    """Base of all deliberate errors."""


class ConfigError(CoraldError):
    """The configuration, catalogue or a plugin's settings are wrong; exit code 78.

    The message says where (file, line, path) and what to do.
    """


class LibraryError(CoraldError):
    """A template library is missing, corrupt or made for another catalogue."""


class StoreError(CoraldError):
    """The state directory or database cannot be used; nothing was recreated over it."""


class StateLockedError(CoraldError):
    """Another daemon holds the state directory; exit code 75."""


class SolverError(CoraldError):
    """The solver crashed, hung past its deadline or returned garbage."""


class PlanRejectedError(CoraldError):
    """The independent checker found an allocation that breaks the problem it answers."""


class MalformedEventError(CoraldError):
    """An incoming record is not a valid event; `reason` is a short label for metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Blame(StrEnum):
    """How far an error of a cloud reaches: what else the same cause would hit."""

    OFFERING = "offering"
    BUCKET = "bucket"
    SUBNET = "subnet"
    ACCOUNT = "account"
    TEMPLATE = "template"


class ProviderError(CoraldError):
    """Base of what a provider may raise; `code` is the cloud's own word for it."""

    blame = Blame.OFFERING

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class InsufficientCapacityError(ProviderError):
    """Sold out: mark the offering and solve again; nothing was rented.

    `hours` is set when the cloud says that this will not change soon.
    """

    def __init__(self, message: str, *, code: str = "", hours: float | None = None) -> None:
        super().__init__(message, code=code)
        self.hours = hours


class QuotaExceededError(ProviderError):
    """The account's limit for `bucket` is reached; nothing was rented."""

    blame = Blame.BUCKET

    def __init__(self, message: str, *, bucket: str, code: str = "") -> None:
        super().__init__(message, code=code)
        self.bucket = bucket


class ThrottledError(ProviderError):
    """Slow down and send the same request with the same token again; nothing was rented."""

    blame = Blame.ACCOUNT

    def __init__(self, message: str, *, code: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class OutcomeUnknownError(ProviderError):
    """The call may have taken effect: keep the slot, send the same token again, or look it up."""


class TransientError(ProviderError):
    """A read failed for now; it proves nothing about any machine."""


class InvalidRequestError(ProviderError):
    """The cloud will never accept this request unchanged; open the template's circuit."""

    blame = Blame.TEMPLATE


class CredentialsRejectedError(ProviderError):
    """The account may not do this: freeze the provider, infer nothing about its machines."""

    blame = Blame.ACCOUNT


class InstanceGoneError(ProviderError):
    """The token belongs to a machine that has been terminated already."""


class InstanceNotFoundError(ProviderError):
    """The cloud does not show this machine now, which does not prove that it is gone."""
