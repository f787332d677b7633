"""A service that answers `GET /v1/status` and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from json import dumps
from typing import Any

from prorl_service.schemas import Blame, ErrorInfo, ErrorResponse
from tests import builders
from tests.client.scripted import answering, answers, raw

_REFUSED = ErrorResponse(
    error=ErrorInfo(kind="Unauthorized", blame=Blame.TASK, message="wrong token")
)


@contextmanager
def status_service(*, token: str = "", **status: Any) -> Iterator[str]:
    """Yields its address. Without a `token` it takes any; `status`: fields of its answer."""
    right = raw(dumps(builders.status().model_dump(mode="json") | status).encode())

    def answer(handler: BaseHTTPRequestHandler) -> None:
        is_right = not token or handler.headers["Authorization"] == f"Bearer {token}"
        (right if is_right else answers(_REFUSED, 401))(handler)

    with answering(answer) as url:
        yield url
