"""The daemon: the composition root that builds every real part and lets them work together.

Stopping never stops the fleet: what runs in the clouds serves on, and the next start finds it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corald import __version__
from corald.adapters import logs
from corald.adapters.http import AdminServer
from corald.adapters.jsonlines import JsonLinesSource
from corald.adapters.kafka import KafkaPublisher
from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.kafka_source import KafkaSource
from corald.adapters.metrics import Metrics
from corald.adapters.native import NativeRouting
from corald.adapters.publishing import TopicSink, dead_letters
from corald.adapters.schedule import Schedule
from corald.adapters.store import SqliteStore
from corald.adapters.systemd import Notifier
from corald.config import values
from corald.config.catalog import load_catalog
from corald.config.ground import check_against_catalog, check_against_library
from corald.config.settings import load_settings
from corald.config.units import SecretRef
from corald.config.values import Settings, needs_restart
from corald.core.engine import Engine
from corald.errors import ConfigError, CoraldError, StoreError
from corald.library import Library, read_library, write_library
from corald.model.events import Batch, Offset, PoliciesChanged
from corald.model.fleet import Replica
from corald.model.hardware import Catalog
from corald.model.state import Note, StoredState
from corald.plugin import Clock, Provider, ProviderContext, load_factory
from corald.runtime.clock import SystemClock
from corald.runtime.controller import Controller, Parts
from corald.runtime.observer import Intervals
from corald.runtime.ports import EventSource, NoteSink
from corald.runtime.readiness import ModelledReadiness
from corald.runtime.solving import ProcessSolving

LAG_EVERY_SECONDS = 0.5
STATUS_EVERY_SECONDS = 10.0
BACKUP_EVERY_SECONDS = 3600.0
CLOSE_SECONDS = 3.0
"""For each kind of part that is closed at the end: a stop takes less than 20 seconds in all."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a configuration stands on, checked against it."""

    catalog: Catalog
    library_path: Path
    library: Library


def load_ground(settings: Settings) -> Ground:
    """Read the catalogue and the template library that `settings` name.

    Raises:
        ConfigError: a policy names what they do not have.
        LibraryError: there is no usable library.
    """
    catalog = load_catalog(settings.catalog)
    path = library_path(settings)
    ground = Ground(catalog, path, read_library(path))
    if faults := check_ground(settings, ground):
        raise ConfigError("\n".join(faults))
    return ground


def check_ground(settings: Settings, ground: Ground) -> tuple[str, ...]:
    """List what the policies name and the ground does not have."""
    return (
        *check_against_catalog(settings, ground.catalog),
        *check_against_library(settings, ground.library),
    )


def library_path(settings: Settings, *, existing: bool = True) -> Path:
    """Where the template library is: as configured, else beside the state.

    Raises:
        ConfigError: there is none (only when an existing one is wanted).
    """
    path = settings.library or settings.state_dir / "templates.clt"
    if existing and not path.is_file():
        raise ConfigError(
            f"no template library at {path}; build one: corald templates build -c {settings.path}"
        )
    return path


def build_providers(
    settings: Settings, catalog: Catalog, clock: Clock, extras: Mapping[str, Any] | None = None
) -> dict[str, Provider]:
    """Build every configured provider; nothing is asked of a cloud yet.

    Raises:
        ConfigError: with all faults of all providers.
    """
    providers = {}
    faults = []
    for entry in settings.providers:
        context = ProviderContext(entry.name, settings.cluster, catalog, clock, extras or {})
        try:
            providers[entry.name] = load_factory(entry.plugin).from_config(entry.config, context)
        except ConfigError as error:
            faults.append(f"{entry.where}: providers.{entry.name}: {error}")
    if faults:
        raise ConfigError("\n".join(faults))
    return providers


def routing_of(providers: Iterable[values.ProviderSettings]) -> NativeRouting:
    """Tell which provider an account's own notices are about."""
    return NativeRouting(
        {
            (str(entry.config.get("cloud", entry.plugin)), entry.account, str(region)): entry.name
            for entry in providers
            if entry.account is not None
            for region in entry.config.get("regions", ("*",))
        }
    )


def kafka_settings(kafka: values.KafkaSettings) -> KafkaSettings:
    """Resolve the secret, and check what can be checked without connecting.

    Raises:
        ConfigError: a file or secret cannot be used.
    """
    sasl = kafka.sasl
    return KafkaSettings(
        bootstrap=",".join(kafka.bootstrap),
        demand_topic=kafka.demand_topic,
        availability_topic=kafka.availability_topic,
        group=kafka.group,
        security_protocol=kafka.security.upper().replace("-", "_"),
        sasl_mechanism=sasl.mechanism if sasl else "",
        sasl_username=sasl.username if sasl else "",
        sasl_password=sasl.password.read() if sasl else "",
        ssl_cafile=kafka.ca,
        ssl_certfile=kafka.certificate,
        ssl_keyfile=kafka.key,
        allow_insecure=kafka.allow_insecure,
    )


def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ConfigError, LibraryError: the configuration cannot be used.
        StateLockedError: another daemon has the state directory.
    """
    _begin_logs(settings, settings.read_secrets())
    asyncio.run(Daemon(settings, Notifier.from_environment()).run())


def _begin_logs(settings: Settings, secrets: Mapping[SecretRef, str]) -> None:
    """Log as configured, with every secret of the configuration hidden."""
    logs.configure(settings.log.level, settings.log.format, secrets=secrets.values())


class Daemon:
    """One life of the daemon."""

    def __init__(self, settings: Settings, notifier: Notifier) -> None:
        self._settings = settings
        """As it was at the start; only its policies and log settings change without a restart."""
        self._notifier = notifier
        self._clock = SystemClock()
        self._metrics = Metrics(__version__)
        self._sinks: list[NoteSink] = [logs.LogSink(), self._metrics]
        self._policies = settings.policies
        self._ground = load_ground(settings)
        self._hangup = asyncio.Event()

    async def run(self) -> None:
        """Build, work until a signal, close everything in the opposite order."""
        # A reload asked for while parts are being built waits; unhandled it would be the end.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hangup.set)
        async with AsyncExitStack() as stack:
            # The lock comes first: a second daemon does nothing before it has it.
            store = SqliteStore.open(self._settings.state_dir)
            stack.push_async_callback(store.close)
            stored = await store.load()
            providers = build_providers(self._settings, self._ground.catalog, self._clock)
            stack.push_async_callback(_closing, *providers.values())
            solving = ProcessSolving(self._ground.library, self._keep_library(), self._clock)
            stack.push_async_callback(_closing, solving)
            await solving.start()
            publisher = self._publisher()
            if publisher is not None:
                self._sinks.append(self._topics(publisher))
            controller = Controller(
                Parts(
                    engine=self._engine(stored, frozenset(providers)),
                    store=store,
                    solving=solving,
                    providers=providers,
                    readiness=ModelledReadiness(self._load_seconds),
                    clock=self._clock,
                    sources=self._sources(stored.offsets, publisher),
                    sinks=self._sinks,
                    intervals=_intervals(self._settings),
                ),
                routes_version=int(dict(stored.settings).get("routes_version", "0")),
            )
            self._watch(controller)
            server = self._server(controller)
            self._note("listening", address=await server.start())
            stack.push_async_callback(server.stop)
            schedule = self._schedule(controller, store)
            stack.callback(schedule.stop)
            await self._work(controller, server, publisher)

    async def _work(
        self, controller: Controller, server: AdminServer, publisher: KafkaPublisher | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, controller)
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._reload_on_hangup(controller, server), name="reload"),
                group.create_task(self._watch_lag(), name="loop-lag"),
                group.create_task(
                    self._notifier.keep_alive(self._clock, lambda: controller.deliver(Batch())),
                    name="watchdog",
                ),
            ]
            if publisher is not None:
                helpers.append(group.create_task(publisher.run(), name="publisher"))
            self._note("config_reloaded", ok=True, detail="")
            self._metrics.leader.set(1)
            self._notifier.ready()
            await controller.run()
            for helper in helpers:
                helper.cancel()

    def _stop(self, controller: Controller) -> None:
        self._notifier.stopping()
        self._note("stopping")
        controller.stop()

    # Parts

    def _keep_library(self) -> Path:
        """Copy the library for the solver's processes: the file may be replaced while they run."""
        path = self._settings.state_dir / "templates.in-use.clt"
        try:
            write_library(path, self._ground.library)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def _engine(self, stored: StoredState, providers: frozenset[str]) -> Engine:
        return Engine(
            policies=self._policies,
            catalog=self._ground.catalog,
            templates=self._ground.library,
            providers=providers,
            stored=stored,
            now=self._clock.now(),
        )

    def _sources(
        self, offsets: tuple[Offset, ...], publisher: KafkaPublisher | None
    ) -> list[EventSource]:
        routing = routing_of(self._settings.providers)
        sources: list[EventSource] = []
        if (kafka := self._settings.kafka) is not None:
            sources.append(
                KafkaSource(
                    kafka_settings(kafka),
                    stored=lambda: offsets,
                    routing=routing,
                    now=self._clock.now,
                    dead_letter=(
                        dead_letters(publisher, kafka.dead_letter_topic) if publisher else None
                    ),
                )
            )
        if (path := self._settings.events) is not None:
            sources.append(
                JsonLinesSource(path, stored=lambda: offsets, routing=routing, now=self._clock.now)
            )
        return sources

    def _publisher(self) -> KafkaPublisher | None:
        kafka = self._settings.kafka
        topics = (
            (kafka.plans_topic, kafka.audit_topic, kafka.routes_topic, kafka.dead_letter_topic)
            if kafka
            else ()
        )
        return KafkaPublisher(kafka_settings(kafka)) if kafka and any(topics) else None

    def _topics(self, publisher: KafkaPublisher) -> TopicSink:
        kafka = self._settings.kafka
        return TopicSink(
            publisher,
            cluster=self._settings.cluster,
            audit=kafka.audit_topic if kafka else None,
            plans=kafka.plans_topic if kafka else None,
            routes=kafka.routes_topic if kafka else None,
        )

    def _server(self, controller: Controller) -> AdminServer:
        token = self._settings.http.token
        return AdminServer(
            controller,
            self._metrics,
            self._settings.http,
            clock=self._clock,
            token=token.read() if token else None,
            routing=routing_of(self._settings.providers),
        )

    def _watch(self, controller: Controller) -> None:
        self._metrics.watch(controller.status)
        for sink in self._sinks:
            if isinstance(sink, TopicSink):
                sink.watch(controller)

    def _schedule(self, controller: Controller, store: SqliteStore) -> Schedule:
        async def show() -> None:
            self._notifier.status(_summary(controller))

        async def back_up() -> None:
            try:
                await store.backup(self._settings.state_dir / "backup.db")
            except CoraldError as error:
                self._note("store_failed", message=str(error))

        schedule = Schedule()
        schedule.every(STATUS_EVERY_SECONDS, "status", show)
        schedule.every(BACKUP_EVERY_SECONDS, "backup", back_up)
        schedule.start()
        return schedule

    def _load_seconds(self, replica: Replica) -> float:
        """Every node loads its share of the weights."""
        weights = self._ground.catalog.models[replica.template.model].weight_gib
        return weights / len(replica.offerings) / self._policies.rules.load_gib_per_second

    # While it runs

    async def _reload_on_hangup(self, controller: Controller, server: AdminServer) -> None:
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            await self._reload(controller, server)

    async def _reload(self, controller: Controller, server: AdminServer) -> None:
        """Read and check everything, then take all of it or none."""
        try:
            wanted, secrets = await asyncio.to_thread(self._read_again)
            await self._check_parts(wanted)
        except CoraldError as error:
            for line in str(error).splitlines():
                self._note("config_reloaded", ok=False, detail=line)
            return
        # Machines carry the cluster's name: another one needs a restart, as other parts do.
        policies = replace(wanted.policies, cluster=self._policies.cluster)
        await controller.deliver(Batch(events=(PoliciesChanged(policies, self._clock.now()),)))
        self._policies = policies
        server.token = secrets[wanted.http.token] if wanted.http.token else None
        _begin_logs(wanted, secrets)
        waiting = ", ".join(needs_restart(self._settings, wanted))
        self._note("config_reloaded", ok=True, detail=waiting and f"after a restart: {waiting}")

    def _read_again(self) -> tuple[Settings, Mapping[SecretRef, str]]:
        wanted = load_settings(self._settings.path)
        if faults := check_ground(wanted, self._ground):
            load_ground(wanted)  # what is wrong on disk as well is told by itself
            faults = (*faults, "what is on disk now would do: restart corald to load it")
            raise ConfigError("\n".join(faults))
        if (wanted.catalog, wanted.library) != (self._settings.catalog, self._settings.library):
            load_ground(wanted)
        return wanted, wanted.read_secrets()

    async def _check_parts(self, wanted: Settings) -> None:
        """Refuse what would end the next start, although a reload leaves these parts alone."""
        providers = build_providers(wanted, load_catalog(wanted.catalog), self._clock)
        await _closing(*providers.values())
        if wanted.kafka is not None:
            kafka_settings(wanted.kafka)

    async def _watch_lag(self) -> None:
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(LAG_EVERY_SECONDS)
            late = self._clock.monotonic() - before - LAG_EVERY_SECONDS
            self._metrics.loop_lag.set(max(0.0, late))

    def _note(self, event: str, **fields: str | bool) -> None:
        note = Note(event, tuple(sorted(fields.items())), at=self._clock.now())
        for sink in self._sinks:
            sink.publish(note)


async def _closing(*parts: Provider | ProcessSolving) -> None:
    """Close parts, all at once, but do not wait for ever."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.gather(*(part.close() for part in parts))
    except TimeoutError:
        return


def _intervals(settings: Settings) -> Intervals:
    observe = settings.observe
    return Intervals(
        listing=observe.instances_seconds,
        offerings=observe.offerings_seconds,
        readiness=observe.replicas_seconds,
    )


def _summary(controller: Controller) -> str:
    """What `systemctl status` shows."""
    status = controller.status()
    if not status.synced:
        return f"waiting: {status.waiting}"
    ready = sum(model.replicas_ready for model in status.models)
    state = ", ".join(status.degraded) or "healthy"
    return f"{state}; {ready} replicas ready; {status.usd_per_hour:.2f} USD/h"
