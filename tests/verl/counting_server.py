"""Stand-in for an engine of VeRL's: a Ray actor whose answers follow from its prompts. Ray's
workers load it by name."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"full_determinism": False}}})


class CountingServer:
    """Samples ids from 100 + the prompt's length; if `is_slow`, two of them when it is aborted.

    With `says` it samples those ids instead, up to the first of its own or the caller's end tokens.
    After `meet` it answers once that many calls are here at a time.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.version, self.is_slow, self.has_left, self.pause_s = 0, False, False, 0.01
        self.says: list[int] = []
        self.eos_id = -1
        self.prompts: list[list[int]] = []
        self.parameters: list[dict[str, Any]] = []
        self.running, self.cancelled, self.most = 0, 0, 0
        self.meet(0)
        self.aborting = asyncio.Event()

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def meet(self, calls: int) -> None:
        self.meets, self.met = calls, asyncio.Event()

    def seen(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "parameters": self.parameters,
            "running": self.running,
            "cancelled": self.cancelled,
            "most": self.most,
        }

    def abort(self, version: int) -> None:
        """Ends running calls half done, as before new weights."""
        self.version, self.is_slow = version, False
        self.aborting.set()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        version, wanted = self.version, sampling_params["max_tokens"]
        self.prompts.append(prompt_ids)
        self.parameters.append(sampling_params)
        if self.has_left:
            return _aborted(version)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.is_slow:
                await self.aborting.wait()
                wanted, reason = 2, "aborted"
            else:
                await asyncio.sleep(self.pause_s)
                if self.running >= self.meets:
                    self.met.set()
                await self.met.wait()
                reason = "completed"
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        first = 100 + len(prompt_ids)
        ids = [*range(first, first + wanted)]
        if self.says:
            ids = self._said(wanted, [self.eos_id, *sampling_params["stop_token_ids"]])
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.25] * len(ids),
            stop_reason=reason,
            extra_fields={"global_steps": version},
        )

    def _said(self, wanted: int, ends: list[int]) -> list[int]:
        stops = [place for place, one in enumerate(self.says) if one in ends]
        return self.says[: min([wanted, *(place + 1 for place in stops)])]


def _aborted(version: int) -> TokenOutput:
    """Answers as vLLM does for a call to an engine whose memory the trainer has."""
    return TokenOutput(
        token_ids=[], log_probs=None, stop_reason="aborted", extra_fields={"global_steps": version}
    )


@contextmanager
def counting(count: int) -> Iterator[list[Any]]:
    """Yields so many engines."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield [ray.remote(CountingServer).remote() for _ in range(count)]
    ray.shutdown()


def balancer_of(servers: Mapping[str, Any]) -> Any:
    """Returns VeRL's own router of these engines."""
    return ray.remote(GlobalRequestLoadBalancer).remote(servers=servers)


def client_of(server: Any) -> LLMServerClient:
    return LLMServerClient(CONFIG, balancer_of({"server": server}))
