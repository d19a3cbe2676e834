"""Verbs that ask a running daemon: `status`, `explain`, `routes`, `cost`, `audit`, `pause`, ..."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from corald.cli.client import DEFAULT_URL, Client, TokenOption, UrlOption
from corald.cli.common import Exit, JsonOption, harmless, print_json, print_table

if TYPE_CHECKING:
    from corald.model.status import Status


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    for verb in (status, explain, routes, cost, audit, pause, resume):
        app.command(verb.__name__)(verb)


def status(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    *,
    as_json: JsonOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 3 if degraded, 4 if paused.")
    ] = False,
) -> int:
    """Show models, replicas and money."""
    from corald.model.status import Status

    found = Client(url, token_file).get("/v1/status", Status)
    if as_json:
        print_json(found, Status)
    else:
        _show_status(found)
    return _judge(found) if check else Exit.FINE


def explain(
    kind: Annotated[str, typer.Argument(help="model, instance, offering or template")],
    name: str,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    *,
    as_json: JsonOption = False,
) -> int:
    """Say why something is as it is."""
    path = f"/v1/explain/{quote(kind, safe='')}/{quote(name)}"
    found = Client(url, token_file).get(path, dict[str, Any])
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show_tree(found)
    return Exit.FINE


def routes(
    url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, *, as_json: JsonOption = False
) -> int:
    """Show where each model is served."""
    from corald.model.status import Routes

    found = Client(url, token_file).get("/v1/routes", Routes)
    if as_json:
        print_json(found, Routes)
    else:
        print_table(
            ("model", "phase", "region", "zone", "address", ">weight"),
            [
                (e.model, e.phase, e.region, e.zone, e.address, f"{e.weight:.2f}")
                for e in found.endpoints
            ],
            title=f"routes, version {found.version}",
        )
    return Exit.FINE


def cost(
    url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, *, as_json: JsonOption = False
) -> int:
    """Show what is spent, by model, market and template."""
    from corald.adapters.views import CostView

    found = Client(url, token_file).get("/v1/cost", CostView)
    if as_json:
        print_json(found, CostView)
        return Exit.FINE
    rows = [("all", "", found.usd_per_hour)]
    rows += [("model", name, usd) for name, usd in found.by_model.items()]
    rows += [("market", name, usd) for name, usd in found.by_market.items()]
    rows += [("template", name, usd) for name, usd in found.by_template.items()]
    rows += [("instead", name, usd) for name, usd in found.baselines.items()]
    print_table(("by", "name", ">USD/h"), [(by, name, f"{usd:.2f}") for by, name, usd in rows])
    print(f"today: {found.usd_today:.2f} USD")
    return Exit.FINE


def audit(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    *,
    as_json: JsonOption = False,
) -> int:
    """Show the newest lines of the audit log."""
    from corald.adapters.views import NoteView

    found = Client(url, token_file).get(f"/v1/audit?limit={limit}", list[NoteView])
    if as_json:
        print_json(found, list[NoteView])
    else:
        for note in reversed(found):
            at = datetime.fromtimestamp(note.at, UTC).isoformat(timespec="seconds")
            fields = " ".join(f"{name}={value}" for name, value in note.fields.items())
            print(harmless(f"{at} {note.event} {fields}"))
    return Exit.FINE


PauseBody = dict[str, bool | str]
ModelOption = Annotated[str, typer.Option("--model", help="Only this model.")]


def pause(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    model: ModelOption = "",
    reason: Annotated[str, typer.Option("--reason", help="For the audit log.")] = "",
    *,
    as_json: JsonOption = False,
) -> int:
    """Stop voluntary actions; interrupted machines are still replaced."""
    body: PauseBody = {"paused": True, "model": model, "reason": reason}
    return _pause(Client(url, token_file), body, as_json=as_json)


def resume(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    model: ModelOption = "",
    *,
    as_json: JsonOption = False,
) -> int:
    """Allow voluntary actions again."""
    body: PauseBody = {"paused": False, "model": model, "reason": ""}
    return _pause(Client(url, token_file), body, as_json=as_json)


def _pause(client: Client, body: PauseBody, *, as_json: bool) -> int:
    client.post("/v1/pause", body, dict[str, int])
    if as_json:
        print_json(body, PauseBody)
    else:
        print(f"{body['model'] or 'all models'}: {'paused' if body['paused'] else 'resumed'}")
    return Exit.FINE


def _judge(found: Status) -> Exit:
    if found.degraded or found.frozen:
        return Exit.DEGRADED
    return Exit.REFUSED if found.paused else Exit.FINE


def _show_status(found: Status) -> None:
    state = "synced" if found.synced else f"waiting: {found.waiting}"
    notes = [state, *(["paused"] if found.paused else []), *found.degraded]
    notes += [f"frozen: {found.frozen}"] if found.frozen else []
    print(harmless(f"{found.cluster}: {'; '.join(notes)}"))
    budget = found.budget_usd_per_hour
    limit = "" if budget is None else f" of {budget:.2f}"
    print(
        f"{found.usd_per_hour:.2f} USD/h, committed {found.committed_usd_per_hour:.2f}{limit}, "
        f"today {found.usd_today:.2f} USD"
    )
    print_table(
        (
            "model",
            ">demand/s",
            ">ready/s",
            ">starting/s",
            ">unmet/s",
            "replicas",
            ">USD/h",
            "notes",
        ),
        [
            (
                m.model,
                f"{m.demand:.2f}" + (" stale" if m.stale else ""),
                f"{m.capacity_ready:.2f}",
                f"{m.capacity_starting:.2f}",
                f"{m.unmet:.2f}",
                f"{m.replicas_ready}+{m.replicas_starting}-{m.replicas_draining}",
                f"{m.usd_per_hour:.2f}",
                "; ".join((*(["paused"] if m.paused else []), *m.messages)),
            )
            for m in found.models
        ],
    )
    if found.replicas:
        print_table(
            ("replica", "nodes", "zone", "state", ">throughput", ">USD/h", "reason"),
            [
                (
                    r.id,
                    r.shape,
                    str(r.zone),
                    r.state,
                    f"{r.throughput:.2f}",
                    f"{r.usd_per_hour:.2f}",
                    r.reason,
                )
                for r in found.replicas
            ],
        )


def _show_tree(value: object, indent: str = "") -> None:
    """Print nested values as indented `key: value` lines."""
    pairs = value.items() if isinstance(value, dict) else ()
    for key, inner in pairs:
        if isinstance(inner, dict) and inner:
            print(harmless(f"{indent}{key}:"))
            _show_tree(inner, indent + "  ")
        elif isinstance(inner, list) and inner:
            print(harmless(f"{indent}{key}:"))
            for item in inner:
                text = (
                    ", ".join(f"{k}: {_plain(v)}" for k, v in item.items())
                    if isinstance(item, dict)
                    else _plain(item)
                )
                print(harmless(f"{indent}  - {text}"))
        else:
            print(harmless(f"{indent}{key}: {_plain(inner)}"))


def _plain(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
