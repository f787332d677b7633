"""Releases of vLLM: which are refused, which join with a warning, and what they must report."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.errors import BackendError, BackendRejected
from prorl_service.inference.backend import Backend
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.engines.vllm_releases import release_of
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.schemas import Sampling
from tests.inference.scripted_backend import backend_to
from tests.inference.vllm_stub import VllmStub


@asynccontextmanager
async def known(engine: VllmStub) -> AsyncIterator[Backend]:
    """Yields a backend that knows the engine, as the pool's backends do."""
    async with backend_to(engine) as backend:
        await backend.describe()
        yield backend


@pytest.mark.parametrize("release", ["0.21.0", "0.31.1"])
async def test_a_vllm_that_is_too_old_is_refused_by_its_version(
    release: str, tmp_path: Path
) -> None:
    with pytest.raises(BackendRejected, match=r"vLLM 0\.\d+ is outside the tested range, >=0\.32"):
        async with known(VllmStub(tmp_path, release)):
            pass


@pytest.mark.parametrize("release", ["0.33.1", "0.99.1"])
async def test_a_vllm_that_is_newer_than_the_tested_ones_joins_with_one_warning(
    release: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with known(VllmStub(tmp_path, release)) as backend:
        for _ in range(2):
            await backend.describe()
    said = [one.message for one in caplog.records if "outside the tested range" in one.message]
    assert len(said) == (release == "0.99.1")
    assert all(f"{backend.url}: vLLM 0.99 is" in one for one in said)


async def test_a_vllm_without_its_flag_is_refused_by_the_flag(tmp_path: Path) -> None:
    engine = VllmStub(tmp_path)
    engine.has_scale_out = False
    with pytest.raises(BackendRejected, match="start vLLM with --enable-scale-out"):
        async with known(engine):
            pass


async def test_vllm_must_report_the_versions_of_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(engine: VllmStub, request: Request) -> Response:
        choice: dict[str, Any] = {"token_ids": [5], "finish_reason": "stop"}
        choice["logprobs"] = {"content": [{"logprob": -0.5}]}
        usage = {"prompt_tokens": len((await request.json()).get("token_ids", ()))}
        return JSONResponse({"choices": [choice], "usage": usage})

    call = EngineCall(EncodedPrompt([1, 2]), Sampling(), 4, None, "r")
    async with known(VllmStub(tmp_path)) as backend:
        monkeypatch.setattr(VllmStub, "_generate", silent)
        with pytest.raises(BackendError, match="weight_versions"):
            await backend.generate(call)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.31.0", (0, 31)),
        ("0.24.1rc2", (0, 24)),
        ("0.27.1+cpu", (0, 27)),
        ("1.0", (1, 0)),
        ("0.1.dev1+g1234567", None),
        ("dev", None),
    ],
)
def test_releases_are_read(version: str, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release
