"""The levels among the metrics: one snapshot of the status as Prometheus gauges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from corald.model.status import ModelStatus, Status

Sample = tuple[tuple[str, ...], float | None]
"""Label values and level; None leaves the series out."""


def levels(status: Status) -> Iterator[Metric]:
    """Yield every gauge."""
    yield from _models(status.models)
    yield from _fleet(status)
    yield from _market(status)


def _models(models: tuple[ModelStatus, ...]) -> Iterator[Metric]:
    yield _gauge(
        "demand_age_seconds{model}",
        "Age of a model's newest demand event.",
        (((m.model,), m.demand_age_seconds) for m in models),
    )
    yield _gauge(
        "demand_requests_per_second{model}",
        "Demand, summed over sources.",
        (((m.model,), m.demand) for m in models),
    )
    yield _gauge(
        "capacity_requests_per_second{model,state}",
        "What ready and starting replicas can serve.",
        (
            ((m.model, state), rate)
            for m in models
            for state, rate in (("ready", m.capacity_ready), ("starting", m.capacity_starting))
        ),
    )
    yield _gauge(
        "unmet_requests_per_second{model}",
        "Demand beyond what ready replicas can serve.",
        (((m.model,), m.unmet) for m in models),
    )
    yield _gauge(
        "cost_usd_per_hour{model,market}",
        "What is rented now, at present prices.",
        (((m.model, k), usd) for m in models for k, usd in m.usd_per_hour_by_market.items()),
    )


def _fleet(status: Status) -> Iterator[Metric]:
    replicas = Counter((r.model, r.shape, r.state) for r in status.replicas)
    yield _gauge("replicas{model,template,state}", "Replicas, by shape.", replicas.items())
    rented = (i for i in status.instances if not i.state.ended)
    instances = Counter(
        (i.offering.provider, i.offering.region, i.offering.market, i.state) for i in rented
    )
    yield _gauge(
        "instances{provider,region,market,state}",
        "Machines rented or asked for.",
        instances.items(),
    )
    yield _gauge("orphan_instances", "Machines that nothing explains.", [((), status.orphans)])
    yield _gauge(
        "instances_stuck_terminating", "Machines that do not end.", [((), status.stuck_terminating)]
    )


def _market(status: Status) -> Iterator[Metric]:
    yield _gauge("offering_unavailable", "Offerings left alone now.", [((), len(status.marks))])
    yield _gauge(
        "quota_blocked{region,market}",
        "1 where a quota is reached.",
        ((place, 1) for place in set(status.quota_blocked)),
    )
    yield _gauge(
        "price_age_seconds{provider}",
        "Age of a provider's prices.",
        (((p.name,), p.price_age_seconds) for p in status.providers),
    )
    yield _gauge("plan_age_seconds", "Age of the plan in force.", [((), status.plan_age_seconds)])
    yield _gauge(
        "budget_usd_per_hour", "The cap in force, if any.", [((), status.budget_usd_per_hour)]
    )


def _gauge(form: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Make a family from its name and labels, written as `name{label,label}`."""
    name, _, labels = form.rstrip("}").partition("{")
    family = GaugeMetricFamily(f"corald_{name}", text, labels=labels.split(",") if labels else [])
    for values, level in samples:
        if level is not None:
            family.add_metric(list(values), level)
    return family
