import httpx
import pytest
from fastapi import FastAPI, HTTPException

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.local import free_port
from prorl_service.schemas import BackendSpec, ErrorResponse
from prorl_service.server.errors import install_error_handlers
from tests.server.application import Settings, group, serving


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "NotFound"),
        ("PUT", "/", 405, "MethodNotAllowed"),
        ("GET", "/", 400, "BadRequest"),
    ],
)
async def test_refusals_of_the_framework_have_their_own_kinds(
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


@pytest.mark.processes
async def test_a_body_without_a_content_type_is_refused_with_the_header_to_send(
    http: httpx.AsyncClient,
) -> None:
    body = b'{"groups": []}'
    answer = await http.post("/v1/rollouts", content=body)
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl's default
    by_curl = await http.post("/v1/rollouts", content=body, headers=form)
    for one in (answer, by_curl):
        error = ErrorResponse.model_validate_json(one.content).error
        assert one.status_code == 422
        assert error.hint == "send the header 'Content-Type: application/json'"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/v1/rollouts/g.0?wait=60", "wait", "did you mean wait_s?"),
        ("/v1/rollouts?stat=failed", "stat", "did you mean state?"),
        ("/v1/status?colour=red", "colour", "see /docs for the parameters"),
    ],
)
async def test_a_parameter_that_a_route_does_not_have_is_refused(
    http: httpx.AsyncClient, path: str, field: str, hint: str
) -> None:
    answer = await http.get(path)
    error = ErrorResponse.model_validate_json(answer.content).error
    assert (answer.status_code, error.hint) == (422, hint)
    assert [one.field for one in error.fields] == [field]


@pytest.mark.processes
async def test_a_misspelt_field_is_refused_with_the_nearest(http: httpx.AsyncClient) -> None:
    wrong = group().model_dump(mode="json") | {"sampling": {"temprature": 1}}
    answer = await http.post("/v1/rollouts", json={"groups": [wrong]})
    error = ErrorResponse.model_validate_json(answer.content).error
    assert (answer.status_code, error.hint) == (422, "did you mean temperature?")


async def test_an_engine_that_is_down_is_named_in_a_refusal() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    settings = Settings(backends=(BackendSpec(url=dead),), sandbox="process")
    async with serving(settings) as url, AsyncRolloutClient(url, retry_s=0) as client:
        with pytest.raises(ServiceCallError) as refused:
            await client.submit([group()])
    assert "no inference engine has answered yet" in str(refused.value)
    assert dead.removeprefix("http://") in str(refused.value)
