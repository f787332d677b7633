"""A stub engine with what vLLM says of itself, and what it refuses, from 0.32 on."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.testing import StubEngine
from prorl_service.testing.loopback import Handler
from prorl_service.testing.stubs import refusal


class VllmStub(StubEngine):
    """vLLM of `release`, whose logprobs are of `mode`.

    `has_server_info`: in its development mode; `has_scale_out`: started with that flag.
    """

    def __init__(
        self, model: Path, release: str = "0.32.0", mode: str = "processed_logprobs"
    ) -> None:
        super().__init__(model, lambda _: [5] * 8)
        self.release, self.mode = release, mode
        self.has_server_info = self.has_scale_out = True
        self._instance = str(time.time_ns())

    def restart(self) -> None:
        super().restart()
        self._instance = str(time.time_ns())

    def routes(self) -> Mapping[str, Handler]:
        routes = {**super().routes(), "/version": self._version}
        return {**routes, "/server_info": self._server_info} if self.has_server_info else routes

    def config(self) -> dict[str, Any]:
        model = {"dtype": "torch.bfloat16", "logprobs_mode": self.mode}
        return {"instance_id": self._instance, "model_config": model}

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": self.release})

    async def _server_info(self, request: Request) -> Response:
        assert request.query_params["config_format"] == "json"
        return JSONResponse({"vllm_config": self.config(), "vllm_env": {}})

    async def _models(self, request: Request) -> Response:
        answer = json.loads(bytes((await super()._models(request)).body))
        del answer["data"][0]["logprobs_mode"]
        answer["data"][0]["owned_by"] = "vllm"
        return JSONResponse(answer)

    async def _generate(self, request: Request) -> Response:
        if not self.has_scale_out:
            return refusal(403, "Scale-out endpoints are disabled.")
        if not await request.json():
            return refusal(400, "Field required")
        return await super()._generate(request)
