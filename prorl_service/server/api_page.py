"""The description of the interface for people and generators: order, groups, titles and examples.

What each route does is its docstring. This says in which order the API page shows them, and how it
calls them; a route that is missing here fails a test.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from prorl_service.server.api_calls import curl
from prorl_service.server.api_examples import ANSWERS, BODIES, TEXTS

TAGS: dict[str, tuple[str, dict[str, str]]] = {
    "Rollouts": (
        "What a trainer does: submit groups of tasks, wait for their rollouts, acknowledge them.",
        {
            "POST /v1/rollouts": "Submit groups",
            "POST /v1/tasks/check": "Check tasks",
            "POST /v1/rollouts/stream": "Wait for rollouts",
            "GET /v1/rollouts/{rollout_id}": "Get a rollout",
            "POST /v1/rollouts/cancel": "Cancel rollouts",
            "GET /v1/rollouts/{rollout_id}/gateway": "Get the gateway of a program elsewhere",
            "POST /v1/rollouts/{rollout_id}/gateway/end": "End a program elsewhere",
            "POST /v1/groups/acknowledge": "Acknowledge groups",
        },
    ),
    "For people": (
        "Rollouts in flight and ended, acknowledged or not. Nothing here changes anything.",
        {
            "GET /v1/groups": "List groups",
            "GET /v1/rollouts": "List rollouts",
            "GET /v1/rollouts/{rollout_id}/text": "Get a rollout as text",
            "GET /v1/rollouts/{rollout_id}/tokens": "Get a rollout's tokens",
            "GET /v1/page": "Save groups as an HTML file",
            "GET /v1/training": "Get a run by policy version",
            "GET /v1/agents": "List agents",
            "GET /v1/events": "Listen to events",
        },
    ),
    "Engines": (
        "The inference engines that the policy is sampled from.",
        {
            "GET /v1/backends": "List engines",
            "POST /v1/backends": "Add an engine",
            "PUT /v1/backends": "Replace a front's engines",
            "DELETE /v1/backends/{backend_id}": "Remove an engine",
        },
    ),
    "Weights": (
        "A trainer claims the policy; its weights go to all engines through the service.",
        {
            "POST /v1/policy": "Claim the policy",
            "POST /v1/policy/release": "Release the policy",
            "GET /v1/weights": "Ask how to send weights",
            "POST /v1/weights": "Load weights from a path",
            "PUT /v1/weights": "Send weights",
            "POST /v1/weights/group": "Open an NCCL group",
            "POST /v1/weights/broadcast": "Broadcast weights",
        },
    ),
    "Samplers": (
        "Dynamic sampling: informative groups, drawn step by step.",
        {
            "PUT /v1/samplers/{sampler_id}": "Create or join a sampler",
            "GET /v1/samplers/{sampler_id}": "Get a sampler",
            "POST /v1/samplers/{sampler_id}/groups": "Add candidates",
            "PUT /v1/samplers/{sampler_id}/draws/{draw_id}": "Open a draw",
            "DELETE /v1/samplers/{sampler_id}": "Delete a sampler",
        },
    ),
    "Service": (
        "How the service is.",
        {
            "GET /health": "Get its health",
            "GET /v1/status": "Get its status",
            "GET /metrics": "Get metrics for Prometheus",
        },
    ),
    "ProRL Agent": (
        "Routes of ProRL Agent's server, for trainers that were written for it.",
        {
            "POST /start": "Start",
            "POST /stop": "Stop",
            "GET /status": "Get its status",
            "POST /process": "Run a job",
            "POST /cancel": "Cancel a job",
            "POST /add_llm_server": "Add an engine",
            "POST /clear_llm_server": "Remove all engines",
        },
    ),
}
"""What is shown of each group of routes: its description, and titles by operation, in order."""

JSON = "application/json"


def install_api_page(app: FastAPI) -> None:
    """Call it once all routes are there."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = described(plain())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema`, as FastAPI makes it, is changed."""
    paths: dict[str, dict[str, Any]] = {}
    for name, tag, title in _operations():
        method, path = name.split(" ")
        operation = schema["paths"][path][method.lower()]
        operation |= {"tags": [tag], "summary": title}
        _add_examples(operation, name)
        paths.setdefault(path, {})[method.lower()] = operation
    tags = [{"name": tag, "description": description} for tag, (description, _) in TAGS.items()]
    return schema | {"paths": paths | (schema["paths"] | paths), "tags": tags}


def _operations() -> Iterator[tuple[str, str, str]]:
    for tag, (_, titles) in TAGS.items():
        for name, title in titles.items():
            yield name, tag, title


def _add_examples(operation: dict[str, Any], name: str) -> None:
    if (body := BODIES.get(name)) is not None:
        example = body.model_dump(mode="json", exclude_defaults=True)
        operation["requestBody"]["content"][JSON]["example"] = example
    success = next(one for status, one in operation["responses"].items() if status.startswith("2"))
    content = success.get("content", {})
    if (answer := ANSWERS.get(name)) is not None:
        content[JSON]["example"] = answer.model_dump(mode="json")
    if (text := TEXTS.get(name)) is not None:
        [kind] = content.values()
        kind["example"] = text
    operation["x-codeSamples"] = [
        {"lang": "Shell", "label": "curl", "source": curl(name, operation)}
    ]
