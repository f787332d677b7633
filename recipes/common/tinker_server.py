"""SkyRL's Tinker server on the CPU, without uv: `python -m recipes.common.tinker_server --model DIR
--directory STATE --port P`, or `running` as a process of its own.

SkyRL starts its engine by `uv run`, and lets it outlive a server that is killed; here the engine is
a process of this Python, and ends with the server. For tests, measurements and recipes.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from prorl_service import local

ADAPTERS = 8
"""Slots for adapters, of which the base model takes one; each training client keeps one until its
session has been silent for five minutes."""
BACKEND = {"max_lora_rank": 32, "sample_max_num_sequences": 32, "train_micro_batch_size": 16}
"""Batches of one size each: JAX compiles again for every other."""
START_TIMEOUT_S = 300
"""SkyRL's imports alone take half a minute on a busy machine."""


def running(
    model: Path, directory: Path, *, adapters: int = ADAPTERS, log: Path | None = None
) -> AbstractContextManager[local.LocalProcess]:
    """Runs a server for `model`. `directory`: gets its data base and checkpoints."""
    command = [
        *(sys.executable, "-m", "recipes.common.tinker_server"),
        *("--model", str(model), "--directory", str(directory), "--adapters", str(adapters)),
    ]
    return local.running(
        command,
        log=log or directory / "tinker.log",
        environment={"JAX_PLATFORMS": "cpu", "TINKER_TELEMETRY": "0"},
        start_timeout_s=START_TIMEOUT_S,
    )


def _main(arguments: Sequence[str]) -> None:
    import argparse

    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--adapters", default=ADAPTERS, type=int)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args(arguments)
    config = EngineConfig(
        base_model=options.model,
        backend="jax",
        backend_config={"max_lora_adapters": options.adapters, **BACKEND},
        checkpoints_base=options.directory / "checkpoints",
        database_url=f"sqlite:///{options.directory.absolute()}/tinker.db",
    )
    engine = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "skyrl.tinker.engine"]
    api._build_uv_run_cmd_engine = lambda _, config: [*engine, *config_to_argv(config)]
    api.app.state.engine_config = config
    api.app.add_api_route("/health", api.healthz)
    uvicorn.run(api.app, host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    _main(sys.argv[1:])
