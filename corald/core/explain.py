"""Why a thing is as it is, from what the state knows; plain values for people and JSON."""

from __future__ import annotations

from collections.abc import Mapping

from corald.core.problem import permits
from corald.core.state import ClusterState
from corald.model.fleet import Intent
from corald.model.market import OfferingKey


def explain(state: ClusterState, kind: str, name: str, now: float) -> Mapping[str, object] | None:
    """Explain a `model`, `instance`, `offering` or `template`; None when it is unknown."""
    match kind:
        case "model":
            return _model(state, name, now)
        case "instance":
            return _instance(state, name)
        case "offering":
            return _offering(state, name, now)
        case "template":
            return _template(state, name, now)
        case _:
            return None


def _model(state: ClusterState, name: str, now: float) -> Mapping[str, object] | None:
    policy = state.policies.models.get(name)
    if policy is None:
        return None
    level = state.demand.level(name)
    report = state.report
    choices = [c for c in state.target.choices if c.model == name] if state.target else []
    return {
        "model": name,
        "demand_requests_per_second": level.request_rate if level else None,
        "must_not_shrink": state.hold_reason(name, now),
        "target": [
            {"template": c.template, "zone": str(c.zone), "count": c.count, "kept": c.kept}
            for c in choices
        ],
        "rows": [
            {"phase": r.phase, "demanded": r.demanded, "served": r.served, "unmet": r.unmet}
            for r in (report.rows if report else ())
            if r.model == name
        ],
        "offerings_out_of_bounds": [
            {"offering": str(m.offering), "reason": m.reason, "until": m.until}
            for m in state.offers.marks(now)
            if permits(policy, m.offering)
        ],
        "refused_moves": [r for r in state.refused if name in r],
        "proven_gap": report.gap if report else None,
        "baselines_usd_per_hour": dict(report.baselines) if report else {},
        "messages": list(report.messages) if report else [],
    }


def _instance(state: ClusterState, name: str) -> Mapping[str, object] | None:
    found = [i for i in state.fleet.intents.values() if name in (i.instance, i.id)]
    if not found:
        return None
    intent: Intent = found[0]
    replica = state.fleet.replicas.get(intent.replica)
    return {
        "instance": intent.instance,
        "intent": intent.id,
        "offering": str(intent.request.offering),
        "state": intent.state,
        "departing": intent.departing,
        "reason": intent.reason,
        "replica": intent.replica,
        "replica_state": replica.state if replica else None,
        "replica_reason": replica.reason if replica else "",
        "template": replica.template.id if replica else None,
        "usd_per_hour": intent.usd_per_hour,
    }


def _offering(state: ClusterState, name: str, now: float) -> Mapping[str, object] | None:
    key = next((k for k in state.offers.offered if str(k) == name), None)
    if key is None:
        return None
    quote = state.offers.quote(key)
    held = [i for i in state.fleet.live_intents() if i.request.offering == key]
    return {
        "offering": name,
        "usd_per_hour": quote.offering.usd_per_hour if quote else None,
        "price_age_seconds": now - quote.priced_at if quote else None,
        "held": len(held),
        "obtainable": state.offers.obtainable(key, held, now, state.policies.rules),
        "out_of_bounds": _why_not(state, key, now),
        "permitted_for": [n for n, p in sorted(state.policies.models.items()) if permits(p, key)],
        "chosen_for": sorted(
            {
                c.model
                for c in (state.target.choices if state.target else ())
                if any(k == key for k, _ in c.offerings)
            }
        ),
    }


def _why_not(state: ClusterState, key: OfferingKey, now: float) -> str:
    """The first rule that keeps an offering from being used; empty when none does."""
    if key.provider in state.providers.closed(now):
        return f"provider {key.provider} is not ready"
    if state.offers.quote(key) is None:
        return "no valid price"
    blocked = state.offers.blocked(key, now)
    if blocked:
        return blocked
    if not any(permits(policy, key) for policy in state.policies.models.values()):
        return "no policy permits it"
    return ""


def _template(state: ClusterState, name: str, now: float) -> Mapping[str, object] | None:
    template = state.templates.template(name)
    if template is None:
        return None
    replicas = [r for r in state.fleet.replicas.values() if r.template.id == name]
    return {
        "template": name,
        "throughput": template.throughput,
        "stages": [
            {"layers": s.layers, "tp": s.tp, "nodes": list(s.node_ordinals)}
            for s in template.stages
        ],
        "circuit_open_until": state.circuits.open_at(now).get(name),
        "replicas": len(replicas),
        "in_target": sum(
            c.count for c in (state.target.choices if state.target else ()) if c.template == name
        ),
    }
