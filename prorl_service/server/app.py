"""The HTTP application of a service: routes, guards, error bodies. Starts and stops nothing."""

from fastapi import Depends, FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.routing import Route

from prorl_service import __version__
from prorl_service.gateway import doors
from prorl_service.net.bearer import RequireBearer
from prorl_service.net.origins import RefuseForeignPages
from prorl_service.server.api_page import install_api_page
from prorl_service.server.auth import REFUSAL, is_open
from prorl_service.server.compat.routes import ProRLAdapter, prorl_router
from prorl_service.server.errors import (
    LimitBody,
    error_response,
    install_error_handlers,
    refuse_unknown_parameters,
)
from prorl_service.server.metrics import metrics_router
from prorl_service.server.page_routes import page_router
from prorl_service.server.routes import health_router, router
from prorl_service.server.sampler_routes import sampler_router
from prorl_service.server.service import Service
from prorl_service.server.settings import HttpOptions
from prorl_service.server.view_routes import view_router

BEARER_SCHEME = Security(HTTPBearer(auto_error=False, description="`prorl token` prints it."))
"""Field for the token on the API page; `RequireBearer` checks the token."""


def interface() -> FastAPI:
    """Returns all routes without a service, for a description of them."""
    # FastAPI's own /docs loads its scripts from the internet, which clusters often lack.
    app = FastAPIOffline(title="ProRL rollout service", version=__version__)
    for routes in (router, view_router, sampler_router):
        app.include_router(routes, dependencies=[BEARER_SCHEME, Depends(refuse_unknown_parameters)])
    for routes in (prorl_router, metrics_router):
        app.include_router(routes, dependencies=[BEARER_SCHEME])
    app.include_router(health_router)
    app.include_router(page_router)
    install_api_page(app)
    install_error_handlers(app)
    return app


def create_app(service: Service, options: HttpOptions, token: str | None) -> FastAPI:
    """Returns the application of `service`. `token` None: every request is accepted."""
    app = interface()
    app.state.service = service
    app.state.prorl = ProRLAdapter(service)
    if service.doors is not None:
        app.router.routes.append(Route(f"{doors.PREFIX}/{{path:path}}", service.doors))
    app.add_middleware(
        LimitBody,
        max_bytes=options.max_body_mb * 1024 * 1024,
        unlimited=("PUT /v1/weights", f"POST {doors.PREFIX}/"),  # these have limits of their own
    )
    if token is not None:
        app.add_middleware(RequireBearer, secret=token, is_open=is_open, refusal=REFUSAL)
    app.add_middleware(
        RefuseForeignPages,
        allowed_hosts=options.allow_host,
        checks_host=token is None,
        response=error_response,
    )
    return app
