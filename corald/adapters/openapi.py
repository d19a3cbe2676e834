"""The description of the admin interface, made from the same table that serves it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from corald.adapters.views import Failure

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path: what it answers, and who may ask."""

    method: str
    path: str
    summary: str
    answer: Any = None
    """A type, or a media type for what is not JSON."""
    body: Any = None
    open: bool = False
    """Needs no token."""


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Write the OpenAPI 3.1 document."""
    forms: dict[str, tuple[Any, JsonSchemaMode]] = {"Failure": (Failure, "serialization")}
    for endpoint in endpoints:
        if endpoint.body is not None:
            forms[f"body {endpoint.path}"] = (endpoint.body, "validation")
        if endpoint.answer is not None and not isinstance(endpoint.answer, str):
            forms[f"answer {endpoint.path}"] = (endpoint.answer, "serialization")
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (key, mode, TypeAdapter(form)) for key, (form, mode) in forms.items()
    ]
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    by_key = {key: schema for (key, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, by_key)
        paths.setdefault(_plain(endpoint.path), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "corald", "version": version},
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    media = endpoint.answer if isinstance(endpoint.answer, str) else JSON
    schema = schemas.get(f"answer {endpoint.path}", {"type": "string"})
    failure = {"description": "not served", "content": {JSON: {"schema": schemas["Failure"]}}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "served", "content": {media: {"schema": schema}}},
            "default": failure,
        },
        "security": [] if endpoint.open else [{"token": []}],
    }
    if names := re.findall(r"{(\w+)", endpoint.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if endpoint.body is not None:
        body = {"schema": schemas[f"body {endpoint.path}"]}
        operation["requestBody"] = {"required": True, "content": {JSON: body}}
    return operation


def _plain(path: str) -> str:
    """Drop the patterns of path parameters: `{name:.+}` is `{name}`."""
    return re.sub(r"{(\w+):[^}]*}", r"{\1}", path)
