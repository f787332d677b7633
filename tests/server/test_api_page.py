"""The description of the interface: complete, in order, with examples that the service takes."""

import json
import shlex
from typing import Any

import pytest

from prorl_service.schemas import SubmitRequest
from prorl_service.server.api_examples import ANSWERS, BODIES
from prorl_service.server.api_page import TAGS
from prorl_service.server.app import interface

SCHEMA = interface().openapi()


def operations() -> list[str]:
    return [f"{method.upper()} {path}" for path, one in SCHEMA["paths"].items() for method in one]


def test_each_route_has_its_place_and_title() -> None:
    known = [name for _, titles in TAGS.values() for name in titles]
    assert sorted(operations()) == sorted(known)
    for path, methods in SCHEMA["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert len(operation["tags"]) == 1, (method, path)
    assert [tag["name"] for tag in SCHEMA["tags"]] == list(TAGS)
    assert operations()[0] == "POST /v1/rollouts", "what a newcomer needs comes first"


def operation_of(name: str) -> Any:
    method, path = name.split(" ")
    return SCHEMA["paths"][path][method.lower()]


@pytest.mark.parametrize("name", sorted(BODIES))
def test_examples_of_bodies_are_shown(name: str) -> None:
    body = operation_of(name)["requestBody"]["content"]["application/json"]
    assert type(BODIES[name]).model_validate(body["example"]) == BODIES[name]


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_examples_of_answers_are_shown(name: str) -> None:
    operation = operation_of(name)
    status = next(one for one in operation["responses"] if one.startswith("2"))
    answer = operation["responses"][status]["content"]["application/json"]
    title = answer["schema"]["$ref"].rpartition("/")[2]
    assert title == type(ANSWERS[name]).__name__


def test_each_route_has_an_example_of_all_that_it_takes_and_gives() -> None:
    lacking = []
    for path, methods in SCHEMA["paths"].items():
        for method, operation in methods.items():
            contents = [operation.get("requestBody", {}).get("content", {})]
            contents += [
                answer.get("content", {})
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            ]
            if not all("example" in one for content in contents for one in content.values()):
                lacking.append((method, path))
    assert not lacking


def test_each_route_has_its_curl_command() -> None:
    calls = {
        f"{method.upper()} {path}": shlex.split(operation["x-codeSamples"][0]["source"])
        for path, methods in SCHEMA["paths"].items()
        for method, operation in methods.items()
    }
    assert "{" not in "".join(call[-1] for call in calls.values()), "parameters have values"
    assert calls["GET /health"] == ["curl", "http://localhost:8080/health"]
    submit = calls["POST /v1/rollouts"]
    example = json.loads(submit[submit.index("-d") + 1])
    assert SubmitRequest.model_validate(example) == BODIES["POST /v1/rollouts"]


def test_bodies_that_newcomers_write_first_have_an_example() -> None:
    assert isinstance(BODIES["POST /v1/rollouts"], SubmitRequest)
    with_body = {
        name
        for name in operations()
        if "requestBody" in SCHEMA["paths"][name.split(" ")[1]][name.split(" ")[0].lower()]
    }
    assert with_body == set(BODIES)
