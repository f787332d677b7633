"""Signatures of vLLM's trainer side, printed as JSON by the Python of a vLLM environment."""

import inspect
import json
import sys
from dataclasses import fields

from vllm.distributed.weight_transfer.base import ParamMeta, VLLMWeightSyncClient, WeightSource
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
)
from vllm.utils.network_utils import get_ip, get_open_port

assert callable(get_ip)
assert callable(get_open_port)
found = {
    "init_info": [field.name for field in fields(NCCLTrainerInitInfo)],
    "param_meta": [field.name for field in fields(ParamMeta)],
    "trainer_init": [*inspect.signature(NCCLTrainerWeightTransferEngine.trainer_init).parameters],
    "client": [name for name in vars(VLLMWeightSyncClient) if not name.startswith("_")],
    "source": sorted(WeightSource.__abstractmethods__),
}
json.dump(found, sys.stdout)
