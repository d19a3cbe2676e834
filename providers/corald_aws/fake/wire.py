"""The EC2 Query protocol, driven by the service model that botocore itself ships."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"


_READERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "integer": int,
    "long": int,
    "timestamp": lambda text: datetime.fromisoformat(text).timestamp(),
    "blob": base64.b64decode,
}


class UnknownActionError(Exception):
    """EC2 has no such action."""


@cache
def ec2_model() -> ServiceModel:
    """Load the model once; it takes a fifth of a second."""
    return botocore.session.get_session().get_service_model("ec2")


def operation(action: str) -> OperationModel:
    """Find the model of an action, or raise UnknownActionError."""
    if action not in ec2_model().operation_names:
        raise UnknownActionError(action)
    return ec2_model().operation_model(action)


def parse(form: Mapping[str, str], model: OperationModel) -> dict[str, Any]:
    """Turn the flat form of a request into what boto3's caller passed."""
    if model.input_shape is None:
        return {}
    return _parse_structure(form, model.input_shape, "") or {}


def _parse_structure(form: Mapping[str, str], shape: StructureShape, prefix: str) -> dict[str, Any]:
    found = {}
    for name, member in shape.members.items():
        value = _parse(form, member, f"{prefix}{_request_name(name, member)}")
        if value is not None:
            found[name] = value
    return found


def _request_name(name: str, shape: Shape) -> str:
    if "queryName" in shape.serialization:
        return str(shape.serialization["queryName"])
    written = str(shape.serialization.get("name", name))
    return written[0].upper() + written[1:]


def _parse(form: Mapping[str, str], shape: Shape, key: str) -> Any:  # noqa: ANN401 - any JSON-like value
    if shape.type_name == "structure":
        return _parse_structure(form, shape, f"{key}.") or None
    if shape.type_name == "list":
        items: list[Any] = []
        while (item := _parse(form, shape.member, f"{key}.{len(items) + 1}")) is not None:
            items.append(item)
        return items or None
    text = form.get(key)
    return None if text is None else _READERS.get(shape.type_name, str)(text)


def render(result: Mapping[str, Any], model: OperationModel) -> bytes:
    """Write a result, in the shape that boto3 returns, as the XML that boto3 reads."""
    root = ET.Element(f"{model.name}Response", xmlns=NAMESPACE)
    ET.SubElement(root, "requestId").text = REQUEST_ID
    if model.output_shape is not None:
        _render_structure(result, model.output_shape, root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _render_structure(value: Mapping[str, Any], shape: StructureShape, parent: ET.Element) -> None:
    for name, item in value.items():
        member = shape.members[name]
        _render(item, member, ET.SubElement(parent, member.serialization.get("name", name)))


def _render(value: Any, shape: Shape, element: ET.Element) -> None:  # noqa: ANN401 - any JSON-like value
    match shape.type_name:
        case "structure":
            _render_structure(value, shape, element)
        case "list":
            item_name = shape.member.serialization.get("name", "item")
            for item in value:
                _render(item, shape.member, ET.SubElement(element, item_name))
        case "boolean":
            element.text = "true" if value else "false"
        case "timestamp":
            moment = datetime.fromtimestamp(value, UTC)
            element.text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case _:
            element.text = str(value)


def render_error(code: str, message: str) -> bytes:
    """Write an error as EC2 does."""
    root = ET.Element("Response")
    error = ET.SubElement(ET.SubElement(root, "Errors"), "Error")
    ET.SubElement(error, "Code").text = code
    ET.SubElement(error, "Message").text = message
    ET.SubElement(root, "RequestID").text = REQUEST_ID
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))
