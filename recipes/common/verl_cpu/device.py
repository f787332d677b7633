"""verl's view of a CPU as an accelerator: one device, no memory of its own, gloo between processes.

A run asks Ray for logical GPUs, as many as it has ranks, so verl's placement code is not touched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _DeviceModule(ModuleType):
    """`torch.cpu`, and what verl calls on `torch.cuda` that has no counterpart there.

    Reports itself unavailable, so that verl skips its handling of accelerators' memory.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def is_available(self) -> bool:
        return False

    def get_device_name(self) -> str:
        return "CPU"

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def empty_cache(self) -> None:
        pass

    def memory_allocated(self) -> int:
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self) -> tuple[int, int]:
        return 0, 0


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):  # type: ignore[misc]
    _module = _DeviceModule("torch.cpu")

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        """Returns the device that verl moves tensors to; a number would name a GPU."""
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def cudart(self) -> None:
        return None
