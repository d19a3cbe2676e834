"""Names that derive from one another, so that a crash can never invent a second identity."""

from __future__ import annotations

from hashlib import blake2b

from corald.model.fleet import (
    TAG_CLUSTER,
    TAG_INTENT,
    TAG_MANAGED_BY,
    TAG_MODEL,
    TAG_REPLICA,
    TAG_TEMPLATE,
    Tags,
)


def intent_id(cluster: str, model: str, replica: str, ordinal: int, attempt: int) -> str:
    """Identify one machine we may ask for; `parse_intent_id` takes it apart."""
    return f"{cluster}/{model}/{replica}/{ordinal}/{attempt}"


def parse_intent_id(text: str) -> tuple[str, int, int] | None:
    """Replica, ordinal and attempt of an intent id; None for anything else."""
    parts = text.split("/")
    if len(parts) != 5 or not (parts[3].isdecimal() and parts[4].isdecimal()):
        return None
    return parts[2], int(parts[3]), int(parts[4])


def token_of(intent: str) -> str:
    """Idempotency token of an intent: 47 ASCII characters."""
    return "corald-" + blake2b(intent.encode(), digest_size=20).hexdigest()


def name_of(cluster: str, intent: str) -> str:
    """Resource name of an intent's machine: lower case, digits and hyphens, at most 63."""
    stem = "".join(c if c.isalnum() else "-" for c in cluster.lower())[:24].strip("-")
    return f"corald-{stem}-{blake2b(intent.encode(), digest_size=12).hexdigest()}"


def tags_of(*, cluster: str, model: str, replica: str, template: str, intent: str) -> Tags:
    """The tags a machine is born with; ownership is read from them alone."""
    return tuple(
        sorted(
            (
                (TAG_CLUSTER, cluster),
                (TAG_INTENT, intent),
                (TAG_MANAGED_BY, "corald"),
                (TAG_MODEL, model),
                (TAG_REPLICA, replica),
                (TAG_TEMPLATE, template),
            )
        )
    )
