"""Trains with VeRL's stock command, `python -m verl.trainer.main_ppo`, and `rollout=prorl`.

One file defines a run: VeRL's configuration with ours merged in. It stays with the run, so that the
command can be repeated by hand.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
import pyarrow as pa
import pyarrow.parquet as pq
from hydra.errors import HydraException
from omegaconf import OmegaConf

from prorl_service.errors import ProRLError
from prorl_service.schemas import Task
from prorl_verl import task_payload
from prorl_verl.start import configured
from recipes.common.settings import BadSettings, Training
from recipes.common.training.progress import Progress

CONFIG = "verl"
"""Name of the configuration, in the run's directory."""
REWARD = "critic/score/mean"
STEP = "training/global_step"
LOOK_EVERY_S = 1.0


class TrainerFailed(ProRLError):
    """VeRL's command ended with an error, which it has printed."""


def train(settings: Training, tasks: Sequence[Task], model: Path, url: str, run: Path) -> None:
    """Trains. `run`: the run's own directory. Raises `TrainerFailed`."""
    rows, metrics = run / "tasks.parquet", run / "metrics.jsonl"
    pq.write_table(pa.Table.from_pylist([_row(task, i) for i, task in enumerate(tasks)]), rows)
    config = configuration(settings, rows, model, url, run)
    (run / f"{CONFIG}.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    command = [sys.executable, "-m", "verl.trainer.main_ppo"]
    command += ["--config-dir", str(run), "--config-name", CONFIG]
    environment = {**os.environ, **settings.cluster.environment}
    environment |= {"VERL_FILE_LOGGER_PATH": str(metrics), "PYTHONPATH": _python_path()}
    # VeRL's process ends with this one, however this one ends.
    with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], env=environment) as process:
        try:
            _follow(process, metrics, settings)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise TrainerFailed(f"VeRL ended with code {process.returncode}: see its output above")


def configuration(
    settings: Training, rows: Path, model: Path, url: str, run: Path
) -> dict[str, Any]:
    """Returns VeRL's configuration, as Hydra reads it from a file."""
    uses_kl = settings.algorithm.kl_coefficient > 0
    # A service elsewhere lacks our hub cache: it gets the model's name on the hub, if there is one.
    tokenizer = settings.model.path if settings.service.url else None
    own = {
        "data": {"train_files": str(rows), "val_files": str(rows)},
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "actor": {"use_kl_loss": uses_kl},
        },
        "trainer": {
            "total_training_steps": settings.steps,
            "total_epochs": settings.steps,  # an epoch has at least one step
            "default_local_dir": str((settings.output / "checkpoints").absolute()),
            "resume_mode": "auto",  # `never` with a checkpoint has been refused already
        },
        "prorl": {"url": url, "tokenizer": tokenizer or str(model)},
        "hydra": {"run": {"dir": str(run / "hydra")}},
    }
    merged = OmegaConf.merge(settings.arguments(), own)
    return {"defaults": ["prorl_ppo_trainer", "_self_"], **merged}


def check(config: Mapping[str, Any]) -> None:
    """Has the plug-in check a configuration, as VeRL's command does before Ray starts, without the
    service. Raises `ProRLError`."""
    with TemporaryDirectory() as directory:
        (Path(directory) / f"{CONFIG}.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
        with hydra.initialize_config_dir(directory, version_base=None):
            try:
                composed = hydra.compose(CONFIG, ["hydra.searchpath=[pkg://verl.trainer.config]"])
            except HydraException as error:
                raise BadSettings(f"trainer.arguments: {str(error).splitlines()[0]}") from error
    configured(composed)


def _row(task: Task, index: int) -> dict[str, Any]:
    """Writes a task in the columns that VeRL's data set reads."""
    payload = task_payload(
        task_id=task.task_id,
        agent=task.agent,
        data=task.data,
        image=task.image,
        difficulty=task.difficulty,
        messages=_messages(task) if any(one.pictures for one in task.messages) else None,
    )
    return {
        "prompt": _messages(task, exclude={"pictures"}),
        "data_source": task.agent,
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index},
        "prorl": payload,
    }


def _messages(task: Task, **options: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_defaults=True, **options) for message in task.messages]


def _python_path() -> str:
    """Returns absolute paths: Ray's workers start elsewhere, but import from the same places."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path if path))


def _follow(process: "subprocess.Popen[bytes]", metrics: Path, settings: Training) -> None:
    progress = Progress(
        settings.output / "progress.jsonl", success=settings.agent.success, steps=settings.steps
    )
    for step in _logged(process, metrics):
        if REWARD in step:
            progress.log(int(step[STEP]), step, trained_on=REWARD)


def _logged(process: "subprocess.Popen[bytes]", metrics: Path) -> Iterator[Mapping[str, float]]:
    """Yields what VeRL's file logger writes, until the process has ended and all is read."""
    position = 0
    while True:
        has_ended = process.poll() is not None
        if metrics.exists():
            with metrics.open() as file:
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position = file.tell()
                    yield json.loads(line)["data"]
        if has_ended:
            return
        time.sleep(LOOK_EVERY_S)
