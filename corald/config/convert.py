"""From validated tables to plain values: renaming and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from corald.config import values
from corald.config.checks import split_address
from corald.config.faults import Source
from corald.config.schema import ConfigFile, Http, Kafka, Policy
from corald.model.policy import ModelPolicy, PolicySet, Rules
from corald.model.templates import Slo, Workload


def rules(config: ConfigFile) -> Rules:
    """Collect what holds for all models."""
    return Rules(
        budget_usd_per_hour=config.budget.usd_per_hour,
        budget_usd_per_day=config.budget.usd_per_day,
        max_step_replicas=config.demand.max_step_replicas,
        disruption_share=config.disruption.max_share,
        max_voluntary_terminations=config.disruption.max_terminations,
        voluntary_window_seconds=config.disruption.window,
        freeze_unready_share=config.disruption.freeze_unready_share,
        freeze_unready_count=config.disruption.freeze_unready_count,
        min_life_seconds=config.disruption.min_life,
        debounce_seconds=config.solver.debounce,
        resolve_every_seconds=config.solver.resolve_every,
        solver_deadline_seconds=config.solver.deadline,
        solver_gap=config.solver.gap,
        min_saving_share=config.switching.min_saving,
        amortize_seconds=config.switching.amortize,
        boot_seconds=config.switching.boot,
        load_gib_per_second=config.switching.load_gib_per_second,
        default_availability=config.fallback.default_availability,
        stale_demand_seconds=config.demand.stale_after,
        forget_demand_seconds=config.demand.forget_after,
        price_ttl_seconds=config.prices.stale_after,
        price_hard_age_seconds=config.prices.expire_after,
        stockout_seconds=config.fallback.stockout,
        stockout_max_seconds=config.fallback.stockout_max,
        quota_seconds=config.fallback.quota,
        launch_deadline_seconds=config.machines.launch_deadline,
        ready_deadline_seconds=config.machines.ready_deadline,
        circuit_failures=config.fallback.circuit_failures,
        circuit_seconds=config.fallback.circuit,
        circuit_max_seconds=config.fallback.circuit_max,
        lost_after_seconds=config.machines.lost_after,
        gone_age_seconds=config.machines.gone_age,
        gone_gap_seconds=config.machines.gone_gap,
        orphan_grace_seconds=config.machines.orphan_grace,
        stuck_terminating_seconds=config.machines.stuck_terminating,
        notice_margin_seconds=config.drain.notice_margin,
        route_propagation_seconds=config.drain.route_propagation,
        gang_hold_seconds=config.machines.gang_hold,
        epoch_reset_seconds=config.demand.epoch_reset,
        orphans=config.orphans,
        orphan_models=config.orphan_models,
        paused=config.paused,
        dry_run=config.dry_run,
    )


def model_policy(policy: Policy) -> ModelPolicy:
    """Read one policy table."""
    return ModelPolicy(
        model=policy.model,
        slo=Slo(**policy.slo.model_dump()),
        workload=Workload(**policy.workload.model_dump()),
        serving=policy.serving,
        engine=policy.engine,
        min_replicas=policy.min_replicas,
        max_replicas=policy.max_replicas,
        priority=policy.priority,
        weight=policy.weight,
        headroom=policy.headroom,
        scale_up_delay_seconds=policy.scale_up_delay,
        scale_down_delay_seconds=policy.scale_down_delay,
        scale_to_zero_after_seconds=policy.scale_to_zero_after,
        spot=policy.spot,
        on_demand_base=policy.on_demand_base,
        max_spot_share=policy.max_spot_share,
        regions=policy.regions,
        instance_types=policy.instance_types,
        max_usd_per_hour=policy.max_usd_per_hour,
        drain_deadline_seconds=policy.drain_deadline,
        templates_allow=policy.templates.allow,
        templates_deny=policy.templates.deny,
        image=policy.image,
        engine_args=policy.engine_args,
        ready_after=policy.ready_after,
        rebalance=policy.rebalance,
        paused=policy.paused,
    )


def settings_of(
    config: ConfigFile, source: Source, policies: PolicySet, policy_origins: Mapping[str, str]
) -> values.Settings:
    """Assemble the daemon's settings."""
    return values.Settings(
        path=Path(source.name),
        state_dir=Path(config.state_dir),
        catalog=_path(config.catalog),
        library=_path(config.library),
        http=_http(config.http),
        log=values.LogSettings(config.log.level, config.log.format),
        kafka=_kafka(config.kafka) if config.kafka else None,
        events=_path(config.events.path) if config.events else None,
        providers=tuple(
            values.ProviderSettings(
                name=name,
                plugin=entry.plugin,
                account=entry.account,
                config=dict(entry.model_extra or {}),
                where=source.where(("providers", name)),
            )
            for name, entry in config.providers.items()
        ),
        observe=values.ObserveSettings(
            config.observe.instances_every,
            config.observe.offerings_every,
            config.observe.replicas_every,
        ),
        policies=policies,
        policy_origins=policy_origins,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _http(http: Http) -> values.HttpSettings:
    unix = http.bind.startswith("unix:")
    host, port = ("", 0) if unix else split_address(http.bind)
    return values.HttpSettings(
        host=host,
        port=port,
        socket=Path(http.bind.removeprefix("unix:")) if unix else None,
        token=http.token,
        allowed_hosts=http.allowed_hosts,
    )


def _kafka(kafka: Kafka) -> values.KafkaSettings:
    sasl = kafka.sasl
    return values.KafkaSettings(
        bootstrap=kafka.bootstrap,
        group=kafka.group,
        security=kafka.security,
        allow_insecure=kafka.allow_insecure,
        demand_topic=kafka.topics.demand,
        availability_topic=kafka.topics.availability,
        plans_topic=kafka.topics.plans,
        audit_topic=kafka.topics.audit,
        routes_topic=kafka.topics.routes,
        dead_letter_topic=kafka.topics.dead_letter,
        sasl=values.SaslSettings(sasl.mechanism, sasl.username, sasl.password) if sasl else None,
        ca=_path(kafka.tls.ca),
        certificate=_path(kafka.tls.certificate),
        key=_path(kafka.tls.key),
    )
