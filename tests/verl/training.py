"""Runs of verl's stock command on a CPU, in a separate process, and what they logged.

Every process that a run starts carries its mark, or is forked from the server that forks workers
for all runs, and is gone when `run_main_ppo` returns, however the run ended.
"""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from omegaconf import DictConfig, OmegaConf

from recipes.common.verl_cpu import forks

ROOT = Path(__file__).parents[2]
MARK = "PRORL_TEST_RUN"
DIE_WITH_US = ("setpriv", "--pdeathsig", "TERM")
SERVICE_OPTIONS = ["--sandbox", "bubblewrap", "--agent", "tests.verl.shell_agent:ShellAgent"]
STOCK = (sys.executable, "-m", "verl.trainer.main_ppo")
TIMEOUT_S = 1500
"""Seconds that a run may take: usually a minute, more on a busy machine."""
GRACE_S = 60
"""Seconds for Ray's processes to notice that the command has ended."""

CPU = OmegaConf.load(ROOT / "configs/cluster/cpu.yaml")
"""Settings that verl needs on a CPU."""


def _leaves(config: DictConfig, prefix: str = "++") -> Iterator[tuple[str, object]]:
    """Yields the leaves of a configuration as overrides for Hydra."""
    for key, value in config.items():
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/verl'}",
    "PYTHONUNBUFFERED": "1",
    "RAY_worker_niceness": "0",  # otherwise other tests take all the time from Ray's workers
    **CPU.environment,
}
OVERRIDES: dict[str, object] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 4,
    "data.max_prompt_length": 128,
    "data.max_response_length": 32,
    "data.dataloader_num_workers": 0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,  # batches of any size
    "actor_rollout_ref.actor.optim.lr": 1e-3,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.max_model_len": 256,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "reward.num_workers": 1,
    "trainer.nnodes": 1,
    "trainer.logger": "[console,file]",
    "trainer.total_training_steps": 2,
    "trainer.val_before_train": False,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.resume_mode": "disable",
} | dict(_leaves(CPU.arguments.verl))


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """Result of a run; `metrics` is what verl logged at each step, in order."""

    returncode: int
    lines: list[str]
    metrics: list[dict[str, float]]
    survivors: list[str]
    """Command lines of processes that outlived the command."""

    def values(self, name: str) -> list[float]:
        """Returns `name` at each step. Raises `KeyError` if a step did not log it."""
        return [step[name] for step in self.metrics]


def run_main_ppo(
    directory: Path,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    program: Sequence[str] = STOCK,
    timeout_s: float = TIMEOUT_S,
) -> CompletedRun:
    """Trains on `model`, `train.parquet` and `val.parquet` in `directory`; leaves its logs there.
    `program`: command that takes the overrides.

    Raises `AssertionError` with the end of the output if the command fails, and
    `subprocess.TimeoutExpired` if it takes longer.
    """
    mark = uuid.uuid4().hex
    log, metrics = directory / "verl.log", directory / "metrics.jsonl"
    environment = {**os.environ, **ENVIRONMENT, **(env or {})}
    environment |= {MARK: mark, "VERL_FILE_LOGGER_PATH": str(metrics)}
    # Ray's sockets lie about 70 characters deep in its directory, and 107 is the limit.
    with TemporaryDirectory(prefix="ray-") as ray_directory, log.open("wb") as output:
        command = command_of(program, directory, ray_directory, overrides or {})
        try:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            returncode = process.wait(timeout_s)
        finally:
            survivors = end_survivors(mark)
    lines = log.read_text(errors="replace").splitlines()
    assert returncode == 0, "\n".join(lines[-80:])
    return CompletedRun(returncode, lines, _metrics(metrics), survivors)


def weights_given(run: CompletedRun, server: int = 0) -> dict[int, str]:
    """Returns digests of weights by the step that made them, in order of arrival; all differ."""
    pattern = re.compile(rf"tiny server {server}, weights of step (\d+): (\w+)")
    found = [match.groups() for line in run.lines if (match := pattern.search(line))]
    assert len({digest for _, digest in found}) == len(found)
    return {int(step): digest for step, digest in found}


def worker_command() -> str:
    """Returns the command that Ray runs instead of Python, quoted for Hydra."""
    _, address = _fork_server()
    return f"'{sys.executable} -S -E {forks.__file__} {address}'"


@cache
def _fork_server() -> tuple[psutil.Popen, Path]:
    """Starts a server for all runs of this process, because its imports take five seconds."""
    directory = Path(tempfile.mkdtemp(prefix="forks-"))  # its path must be short
    address = directory / "socket"
    command = [*DIE_WITH_US, sys.executable, "-m", forks.__name__, "serve", str(address)]
    environment = {**os.environ, **ENVIRONMENT}
    process = psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, directory)
    atexit.register(process.wait)
    atexit.register(process.kill)
    return process, address


def _forks() -> list[psutil.Process]:
    """Returns Ray's workers; they have the environment of the server, hence no run's mark."""
    if not _fork_server.cache_info().currsize:
        return []
    server, _ = _fork_server()
    return list(server.children(recursive=True))


def command_of(
    program: Sequence[str], directory: Path, ray_directory: str, overrides: Mapping[str, object]
) -> Sequence[str]:
    settings = {
        "data.train_files": directory / "train.parquet",
        "data.val_files": directory / "val.parquet",
        "actor_rollout_ref.model.path": directory / "model",
        "hydra.run.dir": directory / "hydra",
        "+ray_kwargs.ray_init._temp_dir": ray_directory,
        "ray_kwargs.ray_init.runtime_env.py_executable": worker_command(),
        **OVERRIDES,
        **overrides,
    }
    arguments = [f"{key}={value}" for key, value in settings.items()]
    arguments.sort(key=lambda argument: not argument.startswith("--"))  # options come first
    return [*DIE_WITH_US, *program, *arguments]


def _metrics(file: Path) -> list[dict[str, float]]:
    return [json.loads(line)["data"] for line in file.read_text().splitlines()]


def end_survivors(mark: str) -> list[str]:
    """Kills what a run left running; returns the command lines.

    Ray's processes leave the command's group and session, but keep its environment.
    """
    started = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    _, survivors = psutil.wait_procs([*started, *_forks()], timeout=GRACE_S)
    command_lines = []
    for process in survivors:
        with suppress(psutil.NoSuchProcess):
            command_lines.append(" ".join(process.cmdline()))
            process.kill()
    psutil.wait_procs(survivors)
    return command_lines


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error):
        return bool(process.environ().get(MARK) == mark)
    return False
