"""The whole API against its own schema, by schemathesis: no request brings the service down."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from prorl_service import local
from prorl_service.net.credentials import authorization
from prorl_service.schemas import ErrorResponse
from prorl_service.server.app import interface
from tests.faults.processes import stub_engine

pytestmark = pytest.mark.processes

CHECKED: list[Any] = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
schema = schemathesis.openapi.from_dict(interface().openapi()).exclude(path="/v1/events")


@pytest.fixture(scope="module")
def service_url(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("fuzz") / "service.log"
    with (
        stub_engine(tiny_model) as engine,
        local.service([engine.url], log=log, options=["--sandbox", "process"]) as running,
    ):
        yield running.url
        assert "Traceback" not in log.read_text()


@pytest.mark.logs("the last 32 rollouts all failed or sampled nothing")  # invalid groups do
@schema.parametrize()
@settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_matches_the_schema(case: "schemathesis.Case[Any]", service_url: str) -> None:
    case.headers.update(authorization(service_url))  # replaces a generated one
    answer = case.call(base_url=service_url, timeout=30)
    if answer.status_code >= 500:  # only because a generated engine is unreachable
        assert answer.status_code == 503, answer.text
        assert ErrorResponse.model_validate_json(answer.content).error.retryable
    case.validate_response(answer, checks=CHECKED)
