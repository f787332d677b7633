"""Ways of giving vLLM weights that the reference engine does not have: with our plug-in
(plugins/vllm), as LoRA adapters, and by NCCL."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.engines.base import (
    ADAPTER_PREFIX,
    Broadcast,
    Progress,
    WeightFile,
)
from prorl_service.inference.engines.vllm_routes import FetchFile, VllmRoutes, VllmTransfer
from prorl_service.inference.tensor_file import Header

OF_PLUGIN = "prorl: "
"""Prefix of the plug-in's own reasons."""
NO_PLUGIN = (
    'start vLLM (0.25 or newer) with `--weight-transfer-config \'{"backend": "prorl"}\'` and '
    "prorl-vllm installed, or pass weights through a directory that both see"
)


class PluginFetch(FetchFile):
    """Has our plug-in fetch the file of a whole model."""

    async def prepare(self, on_progress: Progress) -> None:
        try:
            await super().prepare(on_progress)
        except (BackendRejected, BackendUnavailable):
            raise
        except BackendError as error:  # vLLM's answer to whatever a plug-in raises
            raise BackendRejected(
                f"{self._http.url} takes no weights: {error.message}",
                hint="" if OF_PLUGIN in error.message else NO_PLUGIN,
            ) from error


class FetchAdapter(PluginFetch):
    """Has vLLM fetch a LoRA adapter into a directory of its own, and put it on its model.

    vLLM's route loads the first adapter of a kind. For later ones, the files are replaced and the
    loaded adapter is removed, so that the next call reads the files again. (Adapters loaded with
    the route's `load_inplace` are read again at every step.)
    """

    def __init__(self, engine: VllmRoutes, file: WeightFile, loaded: Mapping[str, str]) -> None:
        """`loaded`: directories of our adapters in the engine, keyed by name."""
        super().__init__(engine, file)
        self._loaded = loaded
        self._directory = ""

    def _info_of(self, header: Header) -> dict[str, Any]:
        self.model = f"{ADAPTER_PREFIX}{header.kind}"
        new = f"/tmp/{self.model}-{secrets.token_hex(8)}"
        self._directory = self._loaded.get(self.model, new)
        adapter = {"directory": self._directory, "config": header.adapter_config}
        return {**super()._info_of(header), "adapter": adapter}

    async def _replace(self) -> None:
        await super()._replace()
        if self.model in self._loaded:
            await self._have_it_read_again()
        else:
            body = {"lora_name": self.model, "lora_path": self._directory}
            await self._http.tell("/v1/load_lora_adapter", body)

    async def _have_it_read_again(self) -> None:
        """Removes all adapters, since vLLM does not report this one's number. Each is read again
        when needed."""
        numbers = await self._rpc("list_loras")
        for number in re.findall(r"\d+", str(numbers)):
            await self._rpc("remove_lora", int(number))

    async def _rpc(self, method: str, *args: int) -> object:
        """Returns the first worker's answer: some executors turn a set into a list, others into
        text."""
        body = {"method": method, "args": args}
        return await self._http.ask(
            "POST", "/collective_rpc", lambda answer: answer["results"][0], json=body
        )


class Receive(VllmTransfer):
    """Has vLLM's workers take part in a trainer's broadcast, with vLLM's own backend `nccl`."""

    def __init__(self, engine: VllmRoutes, source: Broadcast) -> None:
        super().__init__(engine)
        self._source = source

    async def meet(self) -> None:
        await self._source.meet()

    def _update_info(self) -> Mapping[str, Any]:
        return self._source.manifest
