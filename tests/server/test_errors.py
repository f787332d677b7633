import httpx
import pytest
from fastapi import FastAPI, HTTPException

from prorl_service.schemas import ErrorResponse
from prorl_service.server.errors import install_error_handlers


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "NotFound"),
        ("PUT", "/", 405, "MethodNotAllowed"),
        ("GET", "/", 400, "BadRequest"),
    ],
)
async def test_refusals_of_the_framework_have_names_of_their_own(
    method: str, path: str, status: int, kind: str
) -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/")
    async def refuse() -> None:
        raise HTTPException(400, "unreadable")

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answer = await http.request(method, path)
    assert answer.status_code == status
    assert ErrorResponse.model_validate_json(answer.content).error.kind == kind
