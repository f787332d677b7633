"""The description of the interface: complete, in order, with examples that the service takes.

An example that its type would write otherwise fails here, with what the type writes.
"""

import json
import re
import shlex
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import TypeAdapter

from prorl_service import __version__
from prorl_service.server.access import ServiceAccess
from prorl_service.server.app import interface

INTERFACE = interface()
SCHEMA = INTERFACE.openapi()
OPERATIONS: dict[str, dict[str, Any]] = {
    f"{method.upper()} {path}": operation
    for path, methods in SCHEMA["paths"].items()
    for method, operation in methods.items()
}
ROUTES = {
    f"{method} {context.path}": context.original_route
    for context in iter_route_contexts(INTERFACE.routes)
    for method in context.methods or ()
    if isinstance(context.original_route, APIRoute)
}
EXAMPLES: dict[str, dict[str, Any]] = json.loads(
    files("prorl_service.server").joinpath("api_examples.json").read_text(encoding="utf-8")
)


def test_each_route_has_its_place_and_title() -> None:
    assert next(iter(OPERATIONS)) == "POST /v1/rollouts", "what a newcomer needs comes first"
    for name, operation in OPERATIONS.items():
        assert ROUTES[name].summary, name
        assert len(operation["tags"]) == 1, name
    used = dict.fromkeys(operation["tags"][0] for operation in OPERATIONS.values())
    assert {tag["name"] for tag in SCHEMA["tags"]} == set(used)


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_route_has_examples_as_its_types_write_them(name: str) -> None:
    example, route, operation = EXAMPLES[name], ROUTES[name], OPERATIONS[name]
    [answer] = [one for status, one in operation["responses"].items() if status[0] == "2"]
    for part in (operation.get("requestBody", {}), answer):
        assert all("example" in content for content in part.get("content", {}).values())
    if route.body_field is not None:
        body: TypeAdapter[Any] = TypeAdapter(route.body_field.field_info.annotation or object)
        sent = body.dump_python(
            body.validate_python(example["body"]), mode="json", exclude_defaults=True
        )
        assert sent == example["body"]
    if route.response_model is not None:
        model = TypeAdapter(route.response_model)
        received = model.dump_python(model.validate_python(example["answer"]), mode="json")
        assert received == example["answer"]


def test_the_example_of_a_status_has_this_version() -> None:
    assert EXAMPLES["GET /v1/status"]["answer"]["version"] == __version__


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_route_has_a_curl_command_with_all_that_it_needs(name: str) -> None:
    method, path = name.split(" ")
    program, *words, last = shlex.split(OPERATIONS[name]["x-codeSamples"][0]["source"])
    address, options = urlsplit(last), list(zip(words[::2], words[1::2], strict=True))
    assert program == "curl"
    assert re.fullmatch(re.sub(r"\{\w+\}", r"[^/{]+", path), unquote(address.path))
    bodies = [json.loads(value) for option, value in options if option == "-d"]
    assert bodies == [example for key, example in EXAMPLES[name].items() if key == "body"]
    assert dict(options).get("-X", "POST" if bodies else "GET") == method
    headers = {value.partition(":")[0] for option, value in options if option == "-H"}
    assert ("Authorization" in headers) is not ServiceAccess().is_open(path)
    needed = [one for one in OPERATIONS[name].get("parameters", []) if one["required"]]
    assert {one["name"] for one in needed if one["in"] == "query"} == {*parse_qs(address.query)}
    assert {one["name"] for one in needed if one["in"] == "header"} <= headers
