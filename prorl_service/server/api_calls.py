"""Curl commands of operations, out of their descriptions: for the API page and the reference."""

import json
import shlex
from typing import Any
from urllib.parse import quote, urlencode

from prorl_service.server.auth import is_open

URL = "http://localhost:8080"
TOKEN = '-H "Authorization: Bearer $(prorl token)"'
JSON = "application/json"
FILE = "weights.safetensors"

VALUES: dict[str, str | int] = {
    "rollout_id": "step7-task12.0",
    "group_id": "step7-task12",
    "backend_id": "gpu1:8000",
    "sampler_id": "my-run",
    "draw_id": "step-8",
    "prorl-training": "3f9ac0ffee12.b71c",
}
"""Values of the parameters that a call must have."""


def curl(name: str, operation: dict[str, Any]) -> str:
    """`name` is `METHOD /path`; `operation` is its part of OpenAPI, with an example of a body."""
    method, path = name.split(" ")
    parts = ["curl"]
    if method != "GET" and not (method == "POST" and "requestBody" in operation):
        parts.append(f"-X {method}")
    if not is_open(path):
        parts.append(TOKEN)
    parts += [f"-H '{one}'" for one in _headers(operation)]
    parts += [*_body(name, operation), shlex.quote(URL + _address(path, operation))]
    return " ".join(parts)


def _headers(operation: dict[str, Any]) -> list[str]:
    needed = (one for one in operation.get("parameters", ()) if one["required"])
    return [f"{one['name']}: {VALUES[one['name']]}" for one in needed if one["in"] == "header"]


def _address(path: str, operation: dict[str, Any]) -> str:
    needed = {one["name"]: one["in"] for one in operation.get("parameters", ()) if one["required"]}
    for parameter in (one for one, place in needed.items() if place == "path"):
        path = path.replace(f"{{{parameter}}}", quote(str(VALUES[parameter]), safe=":"))
    query = {one: VALUES[one] for one, place in needed.items() if place == "query"}
    return f"{path}?{urlencode(query)}" if query else path


def _body(name: str, operation: dict[str, Any]) -> list[str]:
    if name == "PUT /v1/weights":
        return [f"--data-binary @{FILE}"]
    if "requestBody" not in operation:
        return []
    example = operation["requestBody"]["content"][JSON]["example"]
    return [f"-H 'Content-Type: {JSON}'", f"-d {shlex.quote(json.dumps(example))}"]
