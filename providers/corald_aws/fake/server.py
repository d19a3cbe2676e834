"""The HTTP side: which service is spoken to, faults on the wire, and the control channel."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qsl

from corald.errors import ProviderError
from corald.market.faults import Call, Fault, FaultKind
from corald.market.ledger import Record
from corald_aws.fake import control, ec2, pricing, wire
from corald_aws.fake.errors import AwsError, from_market
from corald_aws.fake.world import Account

_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request")
_LOST = (FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER)


class FakeAws:
    """The fake, listening on loopback until closed."""

    def __init__(self, account: Account, *, port: int = 0) -> None:
        self.account = account
        self.lock = threading.Lock()
        self.thawed = threading.Event()
        self.thawed.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.daemon_threads = True
        cast("Any", self._server).fake = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="fake-aws", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def control(self, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - as an order in JSON
        """Carry out an order as `/_control` does; `freeze` and `thaw` hold all calls."""
        if do == "freeze":
            self.thawed.clear()
            return {}
        if do == "thaw":
            self.thawed.set()
            return {}
        with self.lock:
            return control.obey(self.account, {"do": do, **arguments})

    def close(self) -> None:
        self.thawed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for head and body
    disable_nagle_algorithm = True

    @property
    def _fake(self) -> FakeAws:
        return cast("FakeAws", cast("Any", self.server).fake)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the ledger tells everything."""

    def do_GET(self) -> None:
        self._send(200, b'{"ok": true}', "application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/_control":
            self._control(body)
            return
        self._fake.thawed.wait()
        scope = _SCOPE.search(self.headers.get("Authorization", ""))
        if scope is None:
            message = wire.render_error("MissingAuthenticationToken", "not signed")
            self._send(403, message, "text/xml")
            return
        region, service = scope.groups()
        if service == "pricing":
            self._pricing(body)
        else:
            self._ec2(region, dict(parse_qsl(body.decode(), keep_blank_values=True)))

    def _control(self, body: bytes) -> None:
        try:
            result = self._fake.control(**json.loads(body))
        except (KeyError, TypeError, ValueError) as error:
            self._send(400, json.dumps({"error": repr(error)}).encode(), "application/json")
            return
        self._send(200, json.dumps(result).encode(), "application/json")

    def _pricing(self, body: bytes) -> None:
        kind = "application/x-amz-json-1.1"
        try:
            with self._fake.lock:
                fault = self._begin("pricing", Call.OFFERINGS, {})
                _raise_ordered(fault)
                answer = pricing.get_products(self._fake.account, json.loads(body))
        except AwsError as error:
            text = json.dumps({"__type": error.code, "message": error.message})
            self._send(error.status, text.encode(), kind)
            return
        self._send(200, json.dumps(answer).encode(), kind)

    def _ec2(self, region: str, form: Mapping[str, str]) -> None:
        action = form.get("Action", "")
        fault: Fault | None = None
        try:
            model = wire.operation(action)
            parameters = wire.parse(form, model)
            call = ec2.call_of(action)
            with self._fake.lock:
                fault = self._begin(region, call, parameters)
            if fault is not None:
                time.sleep(fault.delay_seconds)
                if fault.kind is FaultKind.LOST_BEFORE:
                    self._hang_up()
                    return
            with self._fake.lock:
                _raise_ordered(fault)
                result = ec2.answer(self._fake.account, region, action, parameters, fault)
            body, status = wire.render(result, model), 200
        except wire.UnknownActionError:
            body, status = wire.render_error("InvalidAction", f"no action {action!r}"), 400
        except AwsError as error:
            body, status = wire.render_error(error.code, error.message), error.status
            with self._fake.lock:
                self._record_refusal(ec2.call_of(action), error, form)
        if fault is not None and fault.kind in _LOST:
            self._hang_up()
        elif fault is not None and fault.kind is FaultKind.TRUNCATED:
            self._send(status, body, "text/xml;charset=UTF-8", cut=len(body) // 2)
        else:
            self._send(status, body, "text/xml;charset=UTF-8")

    def _begin(self, region: str, call: Call, parameters: Mapping[str, Any]) -> Fault | None:
        account = self._fake.account
        try:
            return account.market.begin(
                call,
                account.clock.now(),
                region=region,
                token=parameters.get("ClientToken", ""),
                request=ec2.digest_of(parameters) if call is Call.LAUNCH else "",
            )
        except ProviderError as error:
            raise from_market(error) from error

    def _record_refusal(self, call: Call, error: AwsError, form: Mapping[str, str]) -> None:
        """Write down what the marketplace has not refused by itself."""
        if error.__cause__ is None:
            account = self._fake.account
            account.market.ledger.write(
                account.clock.now(),
                Record.REFUSED,
                call,
                token=form.get("ClientToken", ""),
                detail=error.code,
            )

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, body: bytes, kind: str, *, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            self._hang_up()


def _raise_ordered(fault: Fault | None) -> None:
    if fault is not None and fault.kind is FaultKind.ERROR:
        raise AwsError(fault.code, f"on order: {fault.code}", fault.status)
