"""Transfer of weights by NCCL, from the trainer's GPU to those of the engines.

For vLLM, its own trainer side does it (0.28 or newer, installed next to TRL). It believes that it
talks to one engine; it talks to the service, which makes all engines follow. For SGLang, this side
is a group of torch.distributed beside the one in which the trainer may train. The service decides
how weights travel, and `weights.send` obeys.
"""

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from prorl_service.client import RolloutClient
from prorl_service.neighbours import UntestedRelease, neighbours
from prorl_service.schemas import WeightsReport, WeightsTerms
from prorl_trl.safetensors_file import Tensors, wire_dtype

log = logging.getLogger(__name__)


def is_possible() -> bool:
    """Returns whether this process can broadcast to vLLM: it has a GPU, and vLLM's own side."""
    vllm = neighbours()["vllm"]
    if not torch.cuda.is_available() or vllm.installed() is None:
        return False
    try:
        vllm.check("the transfer of weights by NCCL", part="weights by NCCL")
    except UntestedRelease as error:
        log.warning("weights go by files: %s", error.message)
        return False
    return True


class Broadcaster:
    """The trainer's place in a group with the workers of all engines."""

    def __init__(self) -> None:
        self._engines = _Engines()
        self._sender: Any = None
        """vLLM's `NCCLTrainerWeightTransferEngine`, or our `TorchSender`; None while no group is
        open."""

    def send(
        self,
        weights: Tensors,
        dtype: torch.dtype | None,
        terms: WeightsTerms,
        update: "Update",
    ) -> WeightsReport:
        """Raises `ServiceCallError`, and what NCCL raises.

        NCCL has no time limit and cannot be interrupted: when the service reports a failure, a
        thread that waits for the engines is left behind, and the next update opens a new group.
        """
        device = _device()
        policy = _Policy(weights, dtype, device)
        before, self._sender = self._sender, None
        sender = before if terms.group and terms.group == self._engines.group else None
        self._engines.update = update

        def work() -> None:
            try:
                with torch.accelerator.device_index(device.index):
                    if terms.protocol == "sglang":
                        opened = sender or TorchSender.open(terms.workers, self._engines, before)
                        opened.source = policy
                    else:
                        source = _source(policy)
                        opened = sender or _open(terms.workers, self._engines, source)
                        opened.source = source
                    opened.send_weights()
                self._sender = opened
                update.ended.set_result(None)
            except BaseException as error:
                update.fail(error)

        threading.Thread(target=work, name="prorl nccl", daemon=True).start()
        update.ended.result()
        assert update.report is not None
        return update.report


@dataclass
class Update:
    """One update of the weights and its outcome."""

    client: RolloutClient
    after: int
    report: WeightsReport | None = None
    ended: Future[None] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):  # it has failed before
            self.ended.set_exception(error)


class _Engines:
    """vLLM's `VLLMWeightSyncClient`: the service in place of one engine."""

    update: Update

    def __init__(self) -> None:
        self.group = ""
        """Name that the service gave the group."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        with self._failing() as update:
            self.group = update.client.open_nccl_group(init_info).group

    def start_weight_update(self) -> None:
        """Does nothing: the service does it."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        with self._failing() as update:
            update.report = update.client.broadcast_weights(
                self.group, update_info, after=update.after
            )

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Does nothing: the service has done it."""

    @contextmanager
    def _failing(self) -> Iterator[Update]:
        """Ends the update immediately on an error: its other thread waits for engines."""
        try:
            yield self.update
        except Exception as error:
            self.update.fail(error)
            raise


@dataclass
class _Policy:
    """vLLM's `WeightSource`, as of 0.33."""

    weights: Tensors
    dtype: torch.dtype | None
    device: torch.device

    @cached_property
    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(*one) for one in self.described()]

    def described(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Returns name, type and shape of each tensor, in their order."""
        return [
            (name, wire_dtype(tensor, self.dtype), tuple(tensor.shape))
            for name, tensor in self.weights.tensors.items()
        ]

    def implements_iter_full(self) -> bool:
        return True

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.weights:
            dtype = wire_dtype(self.weights.tensors[name], self.dtype)
            yield name, weight.detach().to(self.device, dtype)


@dataclass
class _EarlierPolicy:
    """vLLM's `WeightSource` before 0.33."""

    policy: _Policy

    def metadata(self) -> list[Any]:
        return self.policy.metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.policy.iter_full()


def _source(policy: _Policy) -> _Policy | _EarlierPolicy:
    from vllm.distributed.weight_transfer.base import WeightSource

    return policy if hasattr(WeightSource, "iter_full") else _EarlierPolicy(policy)


def _open(workers: int, engines: _Engines, source: _Policy | _EarlierPolicy) -> Any:
    """Returns when all workers have joined."""
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerInitInfo,
        NCCLTrainerWeightTransferEngine,
    )
    from vllm.utils.network_utils import get_ip, get_open_port

    own = NCCLTrainerInitInfo(
        master_address=get_ip(), master_port=get_open_port(), world_size=1 + workers, rank=0
    )
    return NCCLTrainerWeightTransferEngine.trainer_init(own, client=engines, source=source)


class TorchSender:
    """Rank 0 of a group with SGLang's workers, who open theirs by `init_custom_process_group`."""

    source: _Policy

    def __init__(self, engines: _Engines, name: str, group: c10d.ProcessGroup) -> None:
        self._engines = engines
        self._name = name
        self._group = group

    @classmethod
    def open(cls, workers: int, engines: _Engines, before: object = None) -> "TorchSender":
        """Returns when all workers have joined. `before`: the sender of a group that both sides
        leave, if it is of this kind."""
        address, name = _own_address(), uuid.uuid4().hex
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        info = {
            "master_address": address,
            "master_port": store.port,
            "world_size": 1 + workers,
            "group_name": name,
            "backend": "gloo" if _device().type == "cpu" else "nccl",
            "replaced": before._name if isinstance(before, cls) else "",
        }
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(engines.init_weight_transfer_engine, info)
            if isinstance(before, cls):
                c10d.destroy_process_group(before._group)
            group = _group_of(info, store)
            joined.result()
        return cls(engines, name, group)

    def send_weights(self) -> None:
        """Returns when the engines serve with the weights."""
        names, dtypes, shapes = zip(*self.source.described(), strict=True)
        info = {
            "names": names,
            "dtypes": [str(one).removeprefix("torch.") for one in dtypes],
            "shapes": shapes,
            "group_name": self._name,
        }
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(self._engines.update_weights, info)
            received.add_done_callback(self._abort_if_failed)
            for _, tensor in self.source.iter_full():
                self._group.broadcast(tensor.contiguous(), 0).wait()
            received.result()

    def _abort_if_failed(self, received: Future[None]) -> None:
        """Ends a broadcast that nobody receives: torch would end the trainer after half an hour."""
        if received.exception() is not None:
            self._group.abort()


def _group_of(info: dict[str, Any], store: c10d.Store) -> c10d.ProcessGroup:
    """Opens this side's part. For a group that is not a part of the trainer's own, torch has an
    internal function only."""
    name, world_size = info["group_name"], info["world_size"]
    group: c10d.ProcessGroup
    group, _ = c10d._new_process_group_helper(
        world_size,
        0,
        [],
        c10d.Backend(info["backend"]),
        c10d.PrefixStore(name, store),
        group_name=name,
        timeout=c10d.default_pg_timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def _own_address() -> str:
    """Returns this host's address on the way to others. Sends nothing."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # no network
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
