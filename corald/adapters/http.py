"""The admin interface: probes, metrics, status, plan, events in, pause, and a page for people.

Served on a loopback address or a unix socket only. It decides nothing: everything comes from, or
goes to, the ControlPlane.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import hmac
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import structlog
from aiohttp import web
from pydantic import ValidationError

from corald import __version__
from corald.adapters.codec import decode
from corald.adapters.metrics import CONTENT_TYPE as METRICS_TYPE
from corald.adapters.metrics import Metrics
from corald.adapters.native import NO_ROUTING, NativeRouting
from corald.adapters.openapi import JSON, Endpoint, document
from corald.adapters.views import (
    Accepted,
    CostView,
    Failure,
    NoteView,
    PauseBody,
    PlanView,
    Readiness,
    cost_view,
    from_json,
    note_view,
    plan_view,
    to_json,
)
from corald.config.checks import is_loopback
from corald.config.values import HttpSettings
from corald.errors import ConfigError, CoraldError, MalformedEventError, StoreError
from corald.model.events import Batch, Event, PauseRequested
from corald.model.status import Routes, Status
from corald.plugin import Clock
from corald.runtime.ports import ControlPlane

MAX_BODY_BYTES = 64 << 10
BODY_SECONDS = 10.0
ANSWER_SECONDS = 30.0
IDLE_SECONDS = 15.0
"""A connection that sends no whole request within this time is closed."""
MAX_AUDIT_LINES = 1000
EVENT_TYPES = {JSON, "application/cloudevents+json", "application/cloudevents-batch+json"}
SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

ENDPOINTS = (
    Endpoint("GET", "/healthz", "The process answers.", "text/plain", open=True),
    Endpoint("GET", "/readyz", "Decisions are made (503 until then).", Readiness, open=True),
    Endpoint("GET", "/metrics", "Prometheus metrics.", "text/plain", open=True),
    Endpoint("GET", "/", "The dashboard.", "text/html", open=True),
    Endpoint("GET", "/openapi.json", "This description.", JSON, open=True),
    Endpoint("GET", "/v1/status", "The whole picture.", Status),
    Endpoint("GET", "/v1/plan", "The plan in force.", PlanView),
    Endpoint(
        "GET",
        "/v1/explain/{kind}/{name:.+}",
        "Why a model, instance, offering or template is as it is.",
        dict[str, Any],
    ),
    Endpoint("GET", "/v1/routes", "Where each model is served.", Routes),
    Endpoint("GET", "/v1/audit", "The newest audit lines (?limit=100).", list[NoteView]),
    Endpoint("GET", "/v1/cost", "Money, now and today.", CostView),
    Endpoint(
        "POST",
        "/v1/events",
        "Deliver one CloudEvent or a list of them: all are taken, or none.",
        Accepted,
        dict[str, Any] | list[dict[str, Any]],
    ),
    Endpoint("POST", "/v1/pause", "Stop or resume voluntary actions.", Accepted, PauseBody),
)
_OPEN = {endpoint.path for endpoint in ENDPOINTS if endpoint.open}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AddressTakenError(CoraldError):
    """Another process, perhaps one that is about to end, listens there: worth another try."""


class AdminServer:
    """Serves one ControlPlane; `start` it, `stop` it."""

    def __init__(
        self,
        control: ControlPlane,
        metrics: Metrics,
        settings: HttpSettings,
        *,
        clock: Clock,
        token: str | None = None,
        routing: NativeRouting = NO_ROUTING,
    ) -> None:
        if settings.socket is None and not is_loopback(settings.host):
            raise ConfigError(f"http.bind: {settings.host} is not a loopback address")
        self.token = token
        """Replaced when the configuration is reloaded."""
        self._control = control
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._routing = routing
        self._runner: web.AppRunner | None = None
        self._log = structlog.stdlib.get_logger("corald")
        self._hosts = {"localhost", "127.0.0.1", "::1", settings.host, *settings.allowed_hosts}

    async def start(self) -> str:
        """Listen, and tell where: `http://127.0.0.1:8550` or `unix:/run/corald/http`.

        Raises:
            ConfigError: the address cannot be used.
            AddressTakenError: somebody uses it now.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for endpoint in ENDPOINTS:
            handler = getattr(self, f"_{endpoint.method.lower()}_{_name(endpoint.path)}")
            app.router.add_route(endpoint.method, endpoint.path, handler)
        runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=IDLE_SECONDS, shutdown_timeout=2.0
        )
        await runner.setup()
        try:
            address = await self._listen(runner)
        except OSError as error:
            await runner.cleanup()
            if error.errno == errno.EADDRINUSE:
                raise AddressTakenError("http.bind: another process uses this address") from error
            raise ConfigError(f"http.bind: cannot listen: {error.strerror}") from error
        self._runner = runner
        return address

    async def stop(self) -> None:
        """Stop listening, and let answers under way end within two seconds."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self, runner: web.AppRunner) -> str:
        settings = self._settings
        if settings.socket is not None:
            before = os.umask(0o177)  # the socket is ours alone from its first moment
            try:
                await web.UnixSite(runner, settings.socket).start()
            finally:
                os.umask(before)
            return f"unix:{settings.socket}"
        await web.TCPSite(runner, settings.host, settings.port).start()
        port = runner.addresses[0][1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"http://{host}:{port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let through only what may be asked, and make every failure JSON."""
        try:
            if (refusal := self._refusal(request)) is None:
                async with asyncio.timeout(ANSWER_SECONDS):
                    response = await handler(request)
            else:
                response = refusal
        except web.HTTPException as error:
            response = _failure(error.status, error.reason)
            response.headers.update(
                {name: error.headers[name] for name in ("Allow",) if name in error.headers}
            )
        except TimeoutError:
            response = _failure(503, "too busy to answer in time; try again")
        except StoreError as error:
            response = _failure(503, str(error))
        except web.RequestPayloadError:
            response = _failure(400, "the body is not encoded as the headers say")
        except Exception:  # noqa: BLE001 - logged; a bad answer ends no daemon
            self._log.exception("request_failed", path=request.path)
            response = _failure(500, "a fault of corald; its log says more")
        for name, value in SAFE_HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if _host(request.headers.get("Host", "")) not in self._hosts:
            return _failure(403, "this Host is not served; see http.allowed_hosts")
        if request.path in _OPEN:
            return None
        if self.token is not None:
            if not _same(request.headers.get("Authorization", ""), f"Bearer {self.token}"):
                response = _failure(401, "a bearer token is needed (http.token)")
                response.headers["WWW-Authenticate"] = "Bearer"
                return response
        elif request.method != "GET" and self._settings.socket is None:
            return _failure(403, "nothing can be changed over TCP without http.token")
        if request.method == "POST" and request.content_type not in EVENT_TYPES:
            return _failure(415, "send application/json")
        return None

    async def _get_healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _get_readyz(self, _: web.Request) -> web.Response:
        status = self._control.status()
        answer = Readiness(status.synced, status.waiting)
        return _json(answer, Readiness, status=200 if status.synced else 503)

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": METRICS_TYPE})

    async def _get_dashboard(self, _: web.Request) -> web.Response:
        page, policy = _dashboard()
        headers = {"Content-Security-Policy": policy}
        return web.Response(text=page, content_type="text/html", headers=headers)

    async def _get_openapi(self, _: web.Request) -> web.Response:
        return web.json_response(document(ENDPOINTS, __version__))

    async def _get_status(self, _: web.Request) -> web.Response:
        return _json(self._control.status(), Status)

    async def _get_plan(self, _: web.Request) -> web.Response:
        view = plan_view(self._control.plan_rows(), self._control.status().solve)
        return _json(view, PlanView)

    async def _get_explain(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        found = self._control.explain(kind, name)
        if found is None:
            return _failure(404, f"no {kind} of this name")
        return _json(found, Mapping[str, Any])

    async def _get_routes(self, _: web.Request) -> web.Response:
        return _json(self._control.routes(), Routes)

    async def _get_audit(self, request: web.Request) -> web.Response:
        wanted = request.query.get("limit", "100")
        limit = int(wanted) if re.fullmatch(r"[0-9]{1,9}", wanted) else 0
        if not 1 <= limit <= MAX_AUDIT_LINES:
            return _failure(400, f"limit is a number from 1 to {MAX_AUDIT_LINES}")
        notes = await self._control.audit(limit)
        return _json([note_view(note) for note in notes], list[NoteView])

    async def _get_cost(self, _: web.Request) -> web.Response:
        return _json(cost_view(self._control.status()), CostView)

    async def _post_events(self, request: web.Request) -> web.Response:
        try:
            content = json.loads(await _body(request))
        except (ValueError, RecursionError):
            return _failure(400, "the body is not JSON")
        items = content if isinstance(content, list) else [content]
        events: list[Event] = []
        for index, item in enumerate(items):
            try:
                events += decode(
                    json.dumps(item).encode(),
                    received_at=self._clock.now(),
                    routing=self._routing,
                )
            except MalformedEventError as error:
                return _failure(400, f"nothing was taken; event {index}: {error}")
        await self._control.deliver(Batch(events=tuple(events)))
        return _json(Accepted(len(events)), Accepted)

    async def _post_pause(self, request: web.Request) -> web.Response:
        try:
            body = from_json(await _body(request), PauseBody)
        except ValidationError:
            return _failure(400, 'send {"paused": true or false, "model": "", "reason": ""}')
        if body.model and body.model not in {m.model for m in self._control.status().models}:
            return _failure(404, "no model of this name has a policy")
        event = PauseRequested(body.model, body.paused, body.reason, self._clock.now())
        await self._control.deliver(Batch(events=(event,)))
        return _json(Accepted(1), Accepted)


def _name(path: str) -> str:
    """Name the handler of a path: the word that is special about it."""
    parts = [part for part in path.split("/") if part]
    return parts[parts[0] == "v1"].removesuffix(".json") if parts else "dashboard"


@cache
def _dashboard() -> tuple[str, str]:
    """Read the page, and make the policy that lets its own script run and nothing else."""
    page = (files("corald.adapters") / "dashboard.html").read_text(encoding="utf-8")
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page, (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def _host(header: str) -> str:
    """Take the name out of `name:port`, `[::1]:port` or `name`."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _json(value: object, form: Any, *, status: int = 200) -> web.Response:  # noqa: ANN401
    return web.Response(body=to_json(value, form), status=status, content_type=JSON)


def _failure(status: int, error: str) -> web.Response:
    return _json(Failure(error), Failure, status=status)
