"""The TOML configuration as strict pydantic models: which keys exist, their types and defaults.

Nothing here relates two keys to each other (`checks` does), reads a file or knows a line number.
Defaults come from the model values that the tables become, so that each is stated once.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from corald.config.units import Duration, DurationOrNever, PositiveDuration, Secret
from corald.model.policy import OrphanModels, OrphanPolicy, Rebalance, Rules, SpotUse
from corald.model.templates import Engine, Serving

RULES = Rules()


def _like(pattern: str, meaning: str) -> AfterValidator:
    """Allow strings like `pattern`; others are told its `meaning` rather than an expression."""
    allowed = re.compile(pattern)

    def check(text: str) -> str:
        if allowed.fullmatch(text) is None:
            raise ValueError(f"must be {meaning}")
        return text

    return AfterValidator(check)


ClusterName = Annotated[
    str,
    _like(
        r"[a-z][a-z0-9-]{0,30}",
        "at most 31 small letters, digits and hyphens, beginning with a letter",
    ),
]
"""Short, since machine names and tokens derive from it."""
Name = Annotated[
    str,
    _like(
        r"[a-z0-9][a-z0-9._-]{0,62}",
        "at most 63 small letters, digits, dots, hyphens and underscores, "
        "beginning with a letter or digit",
    ),
]
Topic = Annotated[
    str,
    _like(
        r"[A-Za-z0-9._-]{1,249}",
        "the name of a topic: at most 249 letters, digits, dots, hyphens and underscores",
    ),
]
Text = Annotated[
    str, _like(r"[^\x00-\x1f\x7f]{1,1024}", "1 to 1024 characters without line breaks")
]
AbsolutePath = Annotated[
    str, _like(r"/[^\x00-\x1f\x7f]*", 'an absolute path, such as "/var/lib/corald"')
]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Pattern = Annotated[
    str,
    _like(
        r"[A-Za-z0-9*?\[\]!._+-]{1,200}",
        'a name or a shell-style pattern of names, such as "g6.*"',
    ),
]
Image = Annotated[
    str,
    _like(
        r"([A-Za-z0-9][A-Za-z0-9._/:@-]{0,511})?",
        'the name of an image, such as "registry.example/serve@sha256:..."',
    ),
]
Patterns = Annotated[tuple[Pattern, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
PositiveCount = Annotated[int, Field(ge=1, le=1_000_000)]
Usd = Annotated[float, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]


class Table(BaseModel):
    """A TOML table: unknown keys and loose types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Http(Table):
    """The admin interface."""

    bind: str = "127.0.0.1:8550"
    token: Secret | None = None
    allowed_hosts: Texts = ()


class Log(Table):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Topics(Table):
    """Names of topics; the empty ones are not used."""

    demand: Topic = "corald.demand"
    availability: Topic = "corald.availability"
    plans: Topic | None = None
    audit: Topic | None = None
    routes: Topic | None = None
    dead_letter: Topic | None = None


class Sasl(Table):
    """How corald proves who it is to the broker."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: Text
    password: Secret


class Tls(Table):
    """Certificates (PEM files); without `ca` the system's authorities are trusted."""

    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None


class Kafka(Table):
    """Where events come from."""

    bootstrap: Annotated[Texts, Field(min_length=1)]
    group: Text = "corald"
    security: Literal["plaintext", "ssl", "sasl-plaintext", "sasl-ssl"] = "plaintext"
    allow_insecure: bool = False
    topics: Topics = Topics()
    sasl: Sasl | None = None
    tls: Tls = Tls()


class Events(Table):
    """JSON lines instead of (or beside) Kafka."""

    path: AbsolutePath


class Provider(BaseModel):
    """An account of a cloud; every key that is not here belongs to the plugin."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    plugin: Name
    account: Text | None = None


class Observe(Table):
    """How often clouds and replicas are looked at."""

    instances_every: PositiveDuration = 15.0
    offerings_every: PositiveDuration = 60.0
    replicas_every: PositiveDuration = 5.0


class Budget(Table):
    """Money for all models together."""

    usd_per_hour: Usd | None = RULES.budget_usd_per_hour
    usd_per_day: Usd | None = RULES.budget_usd_per_day


class Disruption(Table):
    """How much may be taken away, or be wrong, at one time."""

    max_share: Share = RULES.disruption_share
    max_terminations: Count = RULES.max_voluntary_terminations
    window: PositiveDuration = RULES.voluntary_window_seconds
    freeze_unready_share: Share = RULES.freeze_unready_share
    freeze_unready_count: Count = RULES.freeze_unready_count
    min_life: Duration = RULES.min_life_seconds


class Switching(Table):
    """What starting a replica costs, and what a change must save."""

    min_saving: Share = RULES.min_saving_share
    amortize: PositiveDuration = RULES.amortize_seconds
    boot: Duration = RULES.boot_seconds
    load_gib_per_second: Positive = RULES.load_gib_per_second


class Solver(Table):
    """When the plan is made anew, and how well."""

    gap: Annotated[float, Field(gt=0, lt=1)] = RULES.solver_gap
    deadline: PositiveDuration = RULES.solver_deadline_seconds
    debounce: Duration = RULES.debounce_seconds
    resolve_every: PositiveDuration = RULES.resolve_every_seconds


class Demand(Table):
    """How far demand events are trusted."""

    sample_window: PositiveDuration = 60.0
    stale_after: PositiveDuration = RULES.stale_demand_seconds
    forget_after: DurationOrNever = RULES.forget_demand_seconds
    max_step_replicas: PositiveCount = RULES.max_step_replicas
    epoch_reset: Duration = RULES.epoch_reset_seconds


class Prices(Table):
    """How long a price is believed."""

    stale_after: PositiveDuration = RULES.price_ttl_seconds
    expire_after: PositiveDuration = RULES.price_hard_age_seconds


class Fallback(Table):
    """What is assumed where nobody says, and how long a refusal is remembered."""

    default_availability: Count = RULES.default_availability
    stockout: PositiveDuration = RULES.stockout_seconds
    stockout_max: PositiveDuration = RULES.stockout_max_seconds
    quota: PositiveDuration = RULES.quota_seconds
    circuit_failures: PositiveCount = RULES.circuit_failures
    circuit: PositiveDuration = RULES.circuit_seconds
    circuit_max: PositiveDuration = RULES.circuit_max_seconds


class Machines(Table):
    """Deadlines in the life of a machine."""

    launch_deadline: PositiveDuration = RULES.launch_deadline_seconds
    ready_deadline: PositiveDuration = RULES.ready_deadline_seconds
    gang_hold: Duration = RULES.gang_hold_seconds
    lost_after: PositiveDuration = RULES.lost_after_seconds
    gone_age: PositiveDuration = RULES.gone_age_seconds
    gone_gap: PositiveDuration = RULES.gone_gap_seconds
    orphan_grace: PositiveDuration = RULES.orphan_grace_seconds
    stuck_terminating: PositiveDuration = RULES.stuck_terminating_seconds


class Drain(Table):
    """How a replica leaves."""

    route_propagation: Duration = RULES.route_propagation_seconds
    notice_margin: Duration = RULES.notice_margin_seconds


class SloTable(Table):
    """Latency targets."""

    ttft_ms: Positive
    tpot_ms: Positive
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0


class WorkloadTable(Table):
    """Tokens per request."""

    input_tokens_mean: Positive
    input_tokens_p95: Positive
    output_tokens_mean: Positive
    output_tokens_p95: Positive


class Templates(Table):
    """Which shapes may be started, as shell-style patterns."""

    allow: Patterns | None = None
    deny: Patterns = ()


class Policy(Table):
    """How one model shall be served."""

    model: Name
    extends: str | None = None
    slo: SloTable
    workload: WorkloadTable
    serving: Annotated[Serving, Field(strict=False)] = Serving.MIXED
    engine: Annotated[Engine, Field(strict=False)] = Engine.VLLM
    min_replicas: Count = 0
    max_replicas: PositiveCount | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    weight: Positive = 1.0
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.1
    scale_up_delay: Duration = 0.0
    scale_down_delay: Duration = 600.0
    scale_to_zero_after: DurationOrNever = None
    spot: Annotated[SpotUse, Field(strict=False)] = SpotUse.PREFER
    on_demand_base: Count = 0
    max_spot_share: Share = 1.0
    regions: Texts | None = None
    instance_types: Patterns | None = None
    max_usd_per_hour: Usd | None = None
    drain_deadline: Duration = 600.0
    templates: Templates = Templates()
    image: Image = ""
    engine_args: Texts = ()
    ready_after: PositiveCount = 2
    rebalance: Annotated[Rebalance, Field(strict=False)] = Rebalance.PREFER
    paused: bool = False


class ConfigFile(Table):
    """The main file."""

    cluster: ClusterName
    state_dir: AbsolutePath = "/var/lib/corald"
    catalog: AbsolutePath | None = None
    library: AbsolutePath | None = None
    policies_dir: Text = "policies.d"
    paused: bool = RULES.paused
    dry_run: bool = RULES.dry_run
    orphans: Annotated[OrphanPolicy, Field(strict=False)] = RULES.orphans
    orphan_models: Annotated[OrphanModels, Field(strict=False)] = RULES.orphan_models
    http: Http = Http()
    log: Log = Log()
    kafka: Kafka | None = None
    events: Events | None = None
    providers: Annotated[dict[Name, Provider], Field(min_length=1)]
    observe: Observe = Observe()
    budget: Budget = Budget()
    disruption: Disruption = Disruption()
    switching: Switching = Switching()
    solver: Solver = Solver()
    demand: Demand = Demand()
    prices: Prices = Prices()
    fallback: Fallback = Fallback()
    machines: Machines = Machines()
    drain: Drain = Drain()
    policies: Annotated[tuple[Policy, ...], Field(strict=False)] = ()


class DropInFile(Table):
    """A file of `policies.d`."""

    policies: Annotated[tuple[Policy, ...], Field(strict=False)]
