"""`docs/reference/http.md`: every route, out of the service's OpenAPI description."""

import json
from collections.abc import Iterator
from typing import Any

from prorl_service.server.app import interface

Schema = dict[str, Any]
MAX_LINES = 40
"""Lines of an example that are shown; the rest is on the service's own page."""
INTRODUCTION = """\
# HTTP

Every route of a service and of a front. A running service shows the same at `/docs`, with the
schema of every field, and has it as `/openapi.json`. `$(prorl token)` is the token of your services
on this machine ([who may use a service](../operations.md#who-may-use-it)).

A refused request has a 4xx or 5xx status and a JSON body. `error.hint` says what to do,
`error.fields` which field is wrong, and `error.retryable` whether the same request may succeed
later ([troubleshooting](../troubleshooting.md)).

"""
NOT_RUN = "<!-- not run: an example of one route; tests/server runs all routes -->"


def page() -> str:
    schema = interface().openapi()
    parts = [INTRODUCTION]
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in schema["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}\n")
        for name, one in operations:
            if one["tags"] == [tag["name"]]:
                parts += [f"### {one['summary']}\n", f"`{name}`\n", *_operation(one, schema)]
    return "\n".join(parts).rstrip() + "\n"


def _operation(operation: Schema, schema: Schema) -> Iterator[str]:
    if description := operation.get("description"):
        yield f"{description.strip()}\n"
    yield from _parameters(operation.get("parameters", []))
    yield from _fields(operation, schema)
    call = operation["x-codeSamples"][0]["source"]
    yield f"{NOT_RUN}\n```sh\n{_readable(call)}\n```\n"
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            yield from _answer(status, answer.get("content", {}))


def _parameters(parameters: list[Schema]) -> Iterator[str]:
    if not parameters:
        return
    yield "| parameter | in | |"
    yield "|---|---|---|"
    for one in parameters:
        default = one["schema"].get("default")
        needed = "required" if one["required"] else f"default: `{json.dumps(default)}`"
        said = _cell(one.get("description", ""))
        yield f"| `{one['name']}` | {one['in']} | {said}{' ' if said else ''}({needed}) |"
    yield ""


def _fields(operation: Schema, schema: Schema) -> Iterator[str]:
    """The fields of the body, one level deep."""
    content = operation.get("requestBody", {}).get("content", {})
    for one in content.values():
        body = resolved(one["schema"], schema)
        rows = list(field_rows(body))
        if rows:
            yield "| field of the body | type | |"
            yield "|---|---|---|"
            yield from rows
            yield ""


def _answer(status: str, content: Schema) -> Iterator[str]:
    if not content:
        yield f"Answers {status} without a body.\n"
    for kind, one in content.items():
        example = one["example"]
        text = example if isinstance(example, str) else json.dumps(example, indent=2)
        lines = text.rstrip().splitlines()
        shown = [*lines[:MAX_LINES], "…"] if len(lines) > MAX_LINES else lines
        yield f"Answers {status}, `{kind}`:\n"
        yield "\n".join(["```", *shown, "```", ""])


def _readable(call: str) -> str:
    """Returns the command with each part of it on a line of its own."""
    for part in (" -H ", " -d ", " --data-binary ", " http://", " 'http://"):
        call = call.replace(part, f" \\\n    {part.lstrip()}")
    return call


def resolved(schema: Schema, whole: Schema) -> Schema:
    reference = schema.get("$ref")
    found = whole["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema
    return dict(found)


def field_rows(schema: Schema) -> Iterator[str]:
    required = schema.get("required", [])
    for name, one in schema.get("properties", {}).items():
        said = _cell(one.get("description", ""))
        if name in required:
            note = "(required)"
        elif "default" in one:
            note = f"(default: `{json.dumps(one['default'], ensure_ascii=False)}`)"
        else:
            note = ""
        yield f"| `{name}` | {kind_of(one)} | {' '.join(filter(None, [said, note]))} |"


def kind_of(schema: Schema) -> str:
    """Returns the type of a field in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if (options := schema.get("anyOf") or schema.get("allOf")) is not None:
        return " or ".join(dict.fromkeys(map(kind_of, options)))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind_of(schema['additionalProperties'])}"
    return str(kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
