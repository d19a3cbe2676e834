"""The admin interface over real sockets: what it answers, and whom it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corald.adapters import http, logs
from corald.adapters.http import ENDPOINTS, AddressTakenError, AdminServer
from corald.adapters.metrics import Metrics
from corald.adapters.views import CostView, PlanView, from_json
from corald.config.values import HttpSettings
from corald.errors import ConfigError
from corald.model.events import DemandObserved, PauseRequested
from corald.model.status import Routes, Status
from tests.unit.adapters.shown import OFFERING, ROUTES, STATUS, ShownControl

TOKEN = "a-token-of-the-test"
SETTINGS = HttpSettings(host="127.0.0.1", port=0, socket=None, token=None, allowed_hosts=())
DEMAND = {
    "specversion": "1.0",
    "id": "e1",
    "source": "router-1",
    "type": "io.corald.demand.v1",
    "sequence": "4",
    "data": {
        "model": "phi-4",
        "request_rate": 5.0,
        "input_tokens": 100.0,
        "output_tokens": 10.0,
        "window_seconds": 30.0,
    },
}


class StoppedClock:
    def now(self) -> float:
        return 1_800_000_000.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Site:
    """A running server, and a client that carries its token."""

    def __init__(self, control: ShownControl, session: aiohttp.ClientSession, url: str) -> None:
        self.control = control
        self.session = session
        self.url = url

    async def ask(
        self, path: str, *, method: str = "GET", token: str | None = TOKEN, **more: Any
    ) -> tuple[int, str, Any]:
        headers = more.pop("headers", {})
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, headers=headers, **more) as answer:
            return answer.status, await answer.text(), answer.headers


def serve(
    use: Callable[[Site], Awaitable[None]],
    *,
    settings: HttpSettings = SETTINGS,
    token: str | None = TOKEN,
) -> ShownControl:
    control = ShownControl()
    metrics = Metrics("1.2.3")
    metrics.watch(control.status)

    async def run() -> None:
        server = AdminServer(control, metrics, settings, clock=StoppedClock(), token=token)
        address = await server.start()
        try:
            path = address.removeprefix("unix:") if settings.socket else None
            connector = aiohttp.UnixConnector(path) if path else aiohttp.TCPConnector()
            async with aiohttp.ClientSession(connector=connector) as session:
                await use(Site(control, session, "http://localhost" if path else address))
        finally:
            await server.stop()

    asyncio.run(run())
    return control


def test_values_survive_the_way_through_json() -> None:
    async def use(site: Site) -> None:
        _, text, _ = await site.ask("/v1/status")
        assert from_json(text, Status) == STATUS
        _, text, _ = await site.ask("/v1/routes")
        assert from_json(text, Routes) == ROUTES

    serve(use)


def test_the_plan_is_summed_up_with_its_change_in_money() -> None:
    async def use(site: Site) -> None:
        _, text, _ = await site.ask("/v1/plan")
        plan = from_json(text, PlanView)
        assert [row.move for row in plan.rows] == ["add", "keep", "drain"]
        assert plan.usd_per_hour_change == pytest.approx(1.0)

    serve(use)


def test_cost_is_split_and_set_beside_the_baselines() -> None:
    async def use(site: Site) -> None:
        _, text, _ = await site.ask("/v1/cost")
        cost = from_json(text, CostView)
        assert cost.by_market == {"spot": 1.5, "on-demand": 0.5}
        assert cost.by_template == {"2xL4": 2.0}
        assert cost.baselines == {"greedy": 3.0, "best-one-gpu": 2.5}

    serve(use)


def test_explanations_are_found_by_kind_and_name() -> None:
    async def use(site: Site) -> None:
        status, text, _ = await site.ask(f"/v1/explain/offering/{OFFERING}")
        assert (status, json.loads(text)["because"]) == (200, "sold out")
        assert (await site.ask("/v1/explain/offering/none"))[0] == 404

    serve(use)


def test_the_audit_is_limited() -> None:
    async def use(site: Site) -> None:
        _, text, _ = await site.ask("/v1/audit?limit=1")
        assert json.loads(text) == [{"at": 1.0, "event": "launched", "fields": {"provider": "aws"}}]
        for wrong in ("0", "1001", "-1", "x", "²"):
            assert (await site.ask(f"/v1/audit?limit={wrong}"))[0] == 400

    serve(use)


def test_readiness_is_503_until_decisions_are_made_and_health_is_not_affected() -> None:
    async def use(site: Site) -> None:
        assert (await site.ask("/readyz", token=None))[0] == 200
        site.control.change(synced=False, waiting="waiting for demand")
        status, text, _ = await site.ask("/readyz", token=None)
        assert (status, json.loads(text)["waiting"]) == (503, "waiting for demand")
        assert (await site.ask("/healthz", token=None))[0] == 200

    serve(use)


def test_one_event_or_a_list_is_delivered_as_one_batch() -> None:
    async def use(site: Site) -> None:
        status, text, _ = await site.ask("/v1/events", method="POST", json=DEMAND)
        assert (status, json.loads(text)) == (200, {"events": 1})
        second = {**DEMAND, "id": "e2", "sequence": "5"}
        await site.ask("/v1/events", method="POST", json=[DEMAND, second])

    batches = serve(use).delivered
    assert [len(batch.events) for batch in batches] == [1, 2]
    [event] = batches[0].events
    assert isinstance(event, DemandObserved)
    assert (event.model, event.request_rate, event.stamp.sequence) == ("phi-4", 5.0, 4)


def test_a_list_with_one_bad_event_has_no_effect() -> None:
    async def use(site: Site) -> None:
        bad = {**DEMAND, "data": {**DEMAND["data"], "request_rate": -1.0}}
        status, text, _ = await site.ask("/v1/events", method="POST", json=[DEMAND, bad])
        assert status == 400
        assert "event 1: out-of-range" in json.loads(text)["error"]

    assert serve(use).delivered == []


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 60_000, b"NaN", b'"x"', b"\xff", b"[1]"])
def test_bodies_that_are_no_events_are_refused(body: bytes) -> None:
    async def use(site: Site) -> None:
        headers = {"Content-Type": "application/json"}
        answer = await site.ask("/v1/events", method="POST", data=body, headers=headers)
        assert answer[0] == 400

    assert serve(use).delivered == []


def test_pausing_is_delivered_as_an_event() -> None:
    async def use(site: Site) -> None:
        body = {"paused": True, "model": "phi-4", "reason": "an incident"}
        assert (await site.ask("/v1/pause", method="POST", json=body))[0] == 200
        assert (await site.ask("/v1/pause", method="POST", json={**body, "model": "x"}))[0] == 404
        assert (await site.ask("/v1/pause", method="POST", json={"model": "phi-4"}))[0] == 400

    [batch] = serve(use).delivered
    assert batch.events == (PauseRequested("phi-4", True, "an incident", 1_800_000_000.0),)


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "\u00e4"])
def test_without_the_right_token_only_probes_metrics_and_the_page_are_served(
    token: str | None,
) -> None:
    async def use(site: Site) -> None:
        for endpoint in ENDPOINTS:
            path = endpoint.path.replace("{kind}", "model").replace("{name:.+}", "phi-4")
            status, _, headers = await site.ask(path, method=endpoint.method, token=token)
            assert status == (200 if endpoint.open else 401)
            assert endpoint.open or headers["WWW-Authenticate"] == "Bearer"

    assert serve(use).delivered == []


def test_without_a_configured_token_tcp_reads_but_changes_nothing() -> None:
    async def use(site: Site) -> None:
        assert (await site.ask("/v1/status", token=None))[0] == 200
        status, text, _ = await site.ask("/v1/events", method="POST", json=DEMAND, token=None)
        assert status == 403
        assert "http.token" in text

    assert serve(use, token=None).delivered == []


def test_a_unix_socket_is_private_and_needs_no_token(tmp_path: Path) -> None:
    path = tmp_path / "http"
    settings = HttpSettings(host="", port=0, socket=path, token=None, allowed_hosts=())

    async def use(site: Site) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        answer = await site.ask("/v1/events", method="POST", json=DEMAND, token=None)
        assert answer[0] == 200

    assert len(serve(use, settings=settings, token=None).delivered) == 1


def test_another_host_name_is_refused_unless_it_is_allowed() -> None:
    async def use(site: Site) -> None:
        for host, status in (
            ("localhost:8550", 200),
            ("[::1]:1", 200),
            ("ops.example", 200),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("", 403),
        ):
            answer = await site.ask("/metrics", headers={"Host": host})
            assert answer[0] == status, host

    allowed = HttpSettings("127.0.0.1", 0, None, None, ("ops.example",))
    serve(use, settings=allowed)


def test_what_is_not_asked_for_properly_is_refused() -> None:
    async def use(site: Site) -> None:
        big = b'{"x": "' + b"x" * (64 << 10) + b'"}'
        as_json = {"Content-Type": "application/json"}
        as_gzip = as_json | {"Content-Encoding": "gzip"}
        cases = (
            ("GET", "/v1/events", {}, 405),
            ("GET", "/v1/pause", {}, 405),
            ("POST", "/v1/status", {"json": {}}, 405),
            ("DELETE", "/v1/status", {}, 405),
            ("GET", "/v1/none", {}, 404),
            ("GET", "/../../etc/passwd", {}, 404),
            ("GET", "/%2e%2e/etc/passwd", {}, 404),
            ("POST", "/v1/events", {"data": b"x=1"}, 415),
            ("POST", "/v1/events", {"data": big, "headers": as_json}, 413),
            ("POST", "/v1/events", {"data": b"no gzip", "headers": as_gzip}, 400),
            ("GET", "/v1/audit?limit=" + "9" * 5000, {}, 400),
        )
        for method, path, more, wanted in cases:
            status, text, _ = await site.ask(path, method=method, **more)
            assert status == wanted, (method, path)
            assert set(json.loads(text)) == {"error"}

    assert serve(use).delivered == []


def test_a_fault_of_ours_is_logged_and_answered_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("info", "json", stream=(log := io.StringIO()))

    def broken(_: ShownControl) -> None:
        raise KeyError("hidden detail")

    monkeypatch.setattr(ShownControl, "routes", broken)

    async def use(site: Site) -> None:
        status, text, headers = await site.ask("/v1/routes")
        assert status == 500
        assert json.loads(text) == {"error": "a fault of corald; its log says more"}
        assert headers["X-Content-Type-Options"] == "nosniff"

    serve(use)
    [line] = log.getvalue().splitlines()
    assert json.loads(line)["event"] == "request_failed"
    assert "hidden detail" in line


def test_requests_that_are_not_proper_http_do_not_fill_the_log() -> None:
    logs.configure("info", "json", stream=(log := io.StringIO()))

    async def use(site: Site) -> None:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()

    serve(use)
    assert log.getvalue() == ""


def test_slow_senders_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.1)

    async def use(site: Site) -> None:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 408 " in await reader.readline()
        writer.close()

    serve(use)


def test_no_answer_may_be_framed_cached_or_read_by_another_site() -> None:
    async def use(site: Site) -> None:
        for path in ("/", "/healthz", "/v1/status", "/v1/none"):
            _, _, headers = await site.ask(path, headers={"Origin": "https://evil.example"})
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert not any(name.startswith("Access-Control") for name in headers)

    serve(use)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    async def use(site: Site) -> None:
        _, page, headers = await site.ask("/", token=None)
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert "http://" not in page
        assert "https://" not in page
        assert "innerHTML" not in page
        assert "script-src 'sha256-" in headers["Content-Security-Policy"]

    serve(use)


def test_the_description_names_every_path_and_its_types() -> None:
    async def use(site: Site) -> None:
        _, text, _ = await site.ask("/openapi.json", token=None)
        described = json.loads(text)
        assert described["openapi"] == "3.1.0"
        paths = {e.path.replace(":.+", "") for e in ENDPOINTS}
        assert set(described["paths"]) == paths
        answer = described["paths"]["/v1/status"]["get"]["responses"]["200"]
        assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Status")
        assert "ReplicaStatus" in described["components"]["schemas"]
        references = set(_references(described))
        known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
        assert references <= known

    serve(use)


def _references(node: Any):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_a_public_address_is_a_configuration_error_and_a_taken_one_is_worth_another_try() -> None:
    control = ShownControl()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = HttpSettings("127.0.0.1", taken.getsockname()[1], None, None, ())
        server = AdminServer(control, Metrics("1"), settings, clock=StoppedClock())
        with pytest.raises(AddressTakenError, match="another process uses this address"):
            asyncio.run(server.start())
    with pytest.raises(ConfigError, match="not a loopback address"):
        AdminServer(
            control, Metrics("1"), HttpSettings("0.0.0.0", 1, None, None, ()), clock=StoppedClock()
        )
