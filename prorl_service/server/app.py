"""The HTTP application of a service: routes, guards, error bodies. Starts and stops nothing.

Also describes the interface, for the API page (`/docs`) and for generators: titles and docstrings
are those of the routes, and `api_examples.json` has a request, an answer and a command of each.
"""

import json
import shlex
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.routing import Route

from prorl_service import __version__
from prorl_service.gateway import doors
from prorl_service.net.bearer import RequireBearer
from prorl_service.net.callers import TokenCallers
from prorl_service.net.origins import RefuseForeignPages
from prorl_service.schemas import ErrorResponse
from prorl_service.server.access import ServiceAccess
from prorl_service.server.compat.routes import Jobs, prorl_router
from prorl_service.server.errors import (
    LimitBody,
    error_response,
    install_error_handlers,
    refuse_unknown_parameters,
)
from prorl_service.server.history_routes import history_router
from prorl_service.server.metrics import metrics_router
from prorl_service.server.routes import (
    engine_router,
    health_router,
    rollout_router,
    status_router,
    weights_router,
)
from prorl_service.server.sampler_routes import sampler_router
from prorl_service.server.service import Service
from prorl_service.server.settings import HttpOptions
from prorl_service.server.view_routes import page_router, view_router

BEARER_SCHEME = Security(HTTPBearer(auto_error=False, description="`prorl token` prints it."))
"""Field for the token on the API page; `RequireBearer` checks the token."""


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse},
    503: {"model": ErrorResponse},
}
TAGS = {
    "Rollouts": "What a trainer does: submit groups of tasks, wait for their rollouts, acknowledge "
    "them.",
    "For people": "Rollouts in flight and ended, acknowledged or not. Nothing here changes "
    "anything.",
    "Engines": "The inference engines that the policy is sampled from.",
    "Weights": "A trainer claims the policy; its weights go to all engines through the service.",
    "Samplers": "Dynamic sampling: informative groups, drawn step by step.",
    "Service": "How the service is.",
    "ProRL Agent": "Routes of ProRL Agent's server, for trainers that were written for it.",
}
"""Description of each group of routes on the API page, in order."""


def _with_examples(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` is changed. `BODY` in a curl command stands for the example of a body."""
    text = files(__package__).joinpath("api_examples.json").read_text(encoding="utf-8")
    for name, example in json.loads(text).items():
        method, path = name.split(" ")
        operation = schema["paths"][path][method.lower()]
        if "body" in example:
            operation["requestBody"]["content"]["application/json"]["example"] = example["body"]
        if "answer" in example:
            status = next(one for one in operation["responses"] if one.startswith("2"))
            [content] = operation["responses"][status]["content"].values()
            content["example"] = example["answer"]
        call = example["curl"].replace("BODY", shlex.quote(json.dumps(example.get("body"))))
        operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": call}]
    return schema


def interface() -> FastAPI:
    """Returns all routes without a service, for a description of them."""
    tags = [{"name": name, "description": description} for name, description in TAGS.items()]
    # FastAPI's own /docs loads its scripts from the internet, which clusters often lack.
    app = FastAPIOffline(title="ProRL rollout service", version=__version__, openapi_tags=tags)
    plain = app.openapi
    app.openapi = cache(lambda: _with_examples(plain()))  # type: ignore[method-assign]
    routers = (
        rollout_router, view_router, engine_router, weights_router, sampler_router, history_router,
    )  # fmt: skip
    for routes in routers:
        guards = [BEARER_SCHEME, Depends(refuse_unknown_parameters)]
        app.include_router(routes, prefix="/v1", responses=REFUSALS, dependencies=guards)
    app.include_router(health_router)
    app.include_router(status_router, prefix="/v1", responses=REFUSALS, dependencies=guards)
    app.include_router(metrics_router, dependencies=[BEARER_SCHEME])
    app.include_router(prorl_router, responses=REFUSALS, dependencies=[BEARER_SCHEME])
    app.include_router(page_router)
    install_error_handlers(app)
    return app


def create_app(service: Service, options: HttpOptions, token: str | None) -> FastAPI:
    """Returns the application of `service`. `token`: its owner's; None: every request is accepted.
    Raises `ProRLError` for a file of named tokens that cannot be read."""
    app = interface()
    app.state.service = service
    app.state.jobs = Jobs()
    if service.doors is not None:
        app.router.routes.append(Route(f"{doors.PREFIX}/{{path:path}}", service.doors))
    app.add_middleware(
        LimitBody,
        max_bytes=options.max_body_mb * 1024 * 1024,
        unlimited=("PUT /v1/weights", f"POST {doors.PREFIX}/"),  # these have limits of their own
    )
    if token is not None:
        app.add_middleware(
            RequireBearer,
            callers=TokenCallers(token, options.named_tokens()),
            access=ServiceAccess(),
        )
    app.add_middleware(
        RefuseForeignPages,
        allowed_hosts=options.allow_host,
        checks_host=token is None,
        response=error_response,
    )
    return app
