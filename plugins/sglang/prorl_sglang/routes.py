"""Routes that fetch weights into a directory, from which SGLang's own routes load them.

`GET /prorl` says what the engine computes in. `POST /prorl/fetch` returns when the file has
arrived, and touches no weight; `POST /prorl/release` removes it. Not supported: several tokenizer
workers, and engines on several hosts, which need a shared directory.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from safetensors.torch import load_file, save_file
from sglang.srt.utils.auth import AuthLevel, auth_level

from prorl_service.net.fetching import Fetches, FetchFailed, Offer
from prorl_service.utils.checkpoint import Shapes, difference, shapes_of
from prorl_sglang.adapters import completed, rescaled

SERVER = "sglang.srt.entrypoints.http_server"


class OfferedWeights(BaseModel):
    """File to fetch; see `Offer`."""

    path: str
    size: int
    url: str
    base: str = ""
    shapes: dict[str, list[int]]
    """Shape of each tensor in the file."""
    adapter_config: str | None
    """Text of a LoRA adapter's adapter_config.json; None for a whole model."""


class FetchedDirectory:
    """The file that was fetched last, in a directory as SGLang loads them. A whole model stays open
    here: for SGLang's other processes it is a link."""

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._model = model_config.model_path
        """Directory or name on the hub of the model that SGLang was started with."""
        self._fetches = Fetches()
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def fetch(self, offer: OfferedWeights) -> dict[str, str]:
        """Returns the directory. Raises `FetchFailed`, and `ValueError` for weights of another
        model."""
        self._clear()
        if offer.adapter_config is None:
            self._check(offer)
        self._fetches.begin(Offer(offer.path, offer.size, offer.url, offer.base))
        file = f"/proc/{os.getpid()}/fd/{self._fetches.file().fileno()}"
        self._directory = tempfile.TemporaryDirectory(prefix="prorl-")
        directory = Path(self._directory.name)
        if offer.adapter_config is None:
            (directory / "model.safetensors").symlink_to(file)
        else:
            matrices = completed(load_file(file), self._shapes())
            save_file(matrices, directory / "adapter_model.safetensors")
            (directory / "adapter_config.json").write_text(rescaled(offer.adapter_config))
            self._fetches.end()
        return {"directory": str(directory)}

    def _shapes(self) -> Shapes:
        return shapes_of(self._model, self._model_config.revision)

    def _check(self, offer: OfferedWeights) -> None:
        is_head_tied = bool(self._model_config.hf_config.tie_word_embeddings)
        if problem := difference(offer.shapes, self._shapes(), is_head_tied=is_head_tied):
            raise ValueError(f"prorl: not the weights of {self._model}: {problem}")

    def release(self) -> None:
        """Removes the directory. A model is the base of the next difference."""
        self._fetches.keep()
        self._clear()

    def _clear(self) -> None:
        self._fetches.end()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def add_routes(manager: Any) -> None:
    """Adds the routes to the HTTP server, if this process has one. `manager`: SGLang's
    `TokenizerManager`."""
    server = sys.modules.get(SERVER)
    if server is None:
        return
    fetched = FetchedDirectory(manager.model_config)

    def describe() -> dict[str, str]:
        return {"dtype": str(manager.model_config.dtype).removeprefix("torch.")}

    @auth_level(AuthLevel.ADMIN_OPTIONAL)  # type: ignore[untyped-decorator]
    def fetch(offer: Annotated[OfferedWeights, Body()]) -> Any:
        try:
            return fetched.fetch(offer)
        except (FetchFailed, ValueError, OSError) as error:
            reason = {"type": type(error).__name__, "message": str(error)}
            return JSONResponse({"error": reason}, status_code=400)

    @auth_level(AuthLevel.ADMIN_OPTIONAL)  # type: ignore[untyped-decorator]
    def release() -> None:
        fetched.release()

    add: Callable[..., None] = server.app.add_api_route
    add("/prorl", describe)
    add("/prorl/fetch", fetch, methods=["POST"])
    add("/prorl/release", release, methods=["POST"])
