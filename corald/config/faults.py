"""What is wrong with a configuration, said so that a person finds the place and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from corald.config.locate import Path, line_of


@dataclass(frozen=True, slots=True)
class Source:
    """One TOML file, parsed."""

    name: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int]

    def where(self, path: Path) -> str:
        return f"{self.name}:{line_of(self.lines, path)}"

    def fault(self, path: Path, message: str) -> str:
        return f"{self.where(path)}: {render(path)}: {message}"


def render(path: Path) -> str:
    """Write a key path as an operator reads it: `policies[0].slo.ttft_ms`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Append to a message: the nearest known name, or all of them."""
    names = sorted(known)
    if near := difflib.get_close_matches(wrong, names, n=1, cutoff=0.6):
        return f'; did you mean "{near[0]}"?'
    return f"; known: {', '.join(names) or 'none'}"


def explain(error: ValidationError, source: Source, schema: type[BaseModel]) -> list[str]:
    """Turn pydantic's findings into one line each; never shows a value, which may be a secret."""
    found = sorted(
        _findings(error, source, schema), key=lambda item: line_of(source.lines, item[0])
    )
    return [source.fault(path, message) for path, message in found]


def _findings(
    error: ValidationError, source: Source, schema: type[BaseModel]
) -> Iterator[tuple[Path, str]]:
    for item in error.errors(include_input=False, include_context=True, include_url=False):
        path = _written_path(item["loc"], source.data)
        match item["type"]:
            case "extra_forbidden":
                key = str(path[-1])
                message = f"unknown key{suggest(key, _keys_at(schema, path[:-1]))}"
            case "missing":
                message = "this key is required"
            case "value_error":
                message = str(item["ctx"]["error"])
            case _:
                message = item["msg"].removeprefix("Input ")
        yield path, message


def _written_path(location: Path, data: Any) -> Path:  # noqa: ANN401  # TOML is any type
    """Keep of pydantic's location what is a key in the file: no union members, no `[key]`."""
    path: list[str | int] = []
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(data, Mapping) and (part in data or (last and part != "[key]")):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            continue
        path.append(part)
    return tuple(path)


def _keys_at(schema: type[BaseModel], path: Path) -> list[str]:
    model: type[BaseModel] | None = schema
    for part in path:
        if model is None:
            return []
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation)
    return list(model.model_fields) if model is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401  # a type form
    """Find the table inside `X | None`, `tuple[X, ...]`, `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple, dict):
        return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
    return None
