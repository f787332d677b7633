"""Checks that run before any work starts; each error says what to do."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.sandbox import provider
from prorl_service.schemas import BackendState, Task
from prorl_service.tokens.chat import ChatFormat
from recipes.common.settings import BadSettings, Model, Run, Training

FIRST_CONTACT_S = 10.0
SLURM = "slurm"
"""Name of the cluster whose GPUs and services are those of a job."""


def model_directory(model: Model) -> Path:
    """Returns the directory of a model with a path, fetching it from the hub if it is not local.

    Raises `BadSettings`.
    """
    assert model.path is not None
    if is_local(model.path):
        path = Path(model.path).expanduser()
        if not (path / "config.json").is_file():
            raise BadSettings(
                f"model.path={model.path} is not a model's directory: it has no config.json",
                hint="name a directory that transformers can load, or a model on the hub",
            )
        return path.absolute()
    from huggingface_hub import snapshot_download  # comes with transformers

    try:
        return Path(snapshot_download(model.path, revision=model.revision))
    except Exception as error:  # the hub's, its client's or the network's
        raise BadSettings(
            f"{model.path} cannot be fetched from the hub: {str(error).splitlines()[0]}",
            hint="check the name and the network, or model.path=DIRECTORY; model=tiny needs no hub",
        ) from error


def is_local(path: str) -> bool:
    """Returns whether a model's path is a directory's, not a name on the hub."""
    return path.startswith(("/", ".", "~")) or Path(path).is_dir()


def is_before_job(settings: Run) -> bool:
    """Returns whether a job will run the command, whose machines are not this one."""
    return settings.cluster.name == SLURM and "SLURM_JOB_ID" not in os.environ


def check_trainer(settings: Training) -> None:
    """Raises `BadSettings` if the trainer or its engine is not installed."""
    trainer = settings.trainer.name
    if not _is_installed(trainer):
        hint = {
            "verl": "for a CPU, run scripts/setup-verl, then .venv-verl/bin/python -m recipes...; "
            "for GPUs see docs/verl.md",
            "trl": "run scripts/setup, then .venv/bin/python -m recipes...",
            "tinker": "run scripts/setup-tinker, then .venv-tinker/bin/python -m recipes...",
        }
        raise BadSettings(f"trainer={trainer} is not installed here", hint=hint[trainer])
    if trainer == "verl" and settings.model.engine == "vllm" and not _is_installed("vllm"):
        raise BadSettings(
            f"model={settings.model.name} needs vLLM, which is not installed here",
            hint="pip install 'verl[vllm]==0.9.1'",
        )


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def check_nodes(settings: Training) -> None:
    """Raises `BadSettings` if the cluster is not that of the job, or engines do not fit a node."""
    cluster, parallel = settings.cluster, settings.model.tensor_parallel
    nodes = os.environ.get("SLURM_JOB_NUM_NODES")
    if cluster.name == SLURM and nodes is not None and int(nodes) != cluster.nodes:
        raise BadSettings(
            f"cluster.nodes={cluster.nodes}, and the job has {nodes}",
            hint=f"set cluster.nodes={nodes}, or sbatch --nodes={cluster.nodes}: docs/slurm.md",
        )
    if settings.trainer.name == "verl" and cluster.gpus_per_node % parallel:
        raise BadSettings(
            f"engines of model.tensor_parallel={parallel} do not fill "
            f"cluster.gpus_per_node={cluster.gpus_per_node}",
            hint="make the number of GPUs a multiple",
        )


def check_gpus(settings: Training) -> None:
    """Raises `BadSettings` if this machine has too few."""
    wanted = settings.cluster.gpus_per_node
    if is_before_job(settings) or settings.trainer.name == "tinker":
        return
    if settings.model.engine == "reference" or os.environ.get("RAY_ADDRESS"):
        return  # a tiny model, or GPUs of other machines
    import torch

    found = torch.cuda.device_count()
    if found < max(wanted, 1):
        raise BadSettings(
            f"model={settings.model.name} with cluster={settings.cluster.name} needs "
            f"{max(wanted, 1)} GPUs on this machine, which has {found}",
            hint="set cluster.gpus_per_node=N for fewer; model=tiny runs without any",
        )


def check_engines(settings: Run, *, brought: bool) -> None:
    """Raises `BadSettings` if no engine would sample. `brought`: the trainer brings its engines."""
    if brought or settings.service.url or settings.engines or settings.model.engine != "vllm":
        return
    path = settings.model.path
    raise BadSettings(
        f"model={settings.model.name} needs an engine, and there is none",
        hint=f"start one (vllm serve {path}; options: docs/engines.md) and set engines=[URL], or "
        "set service.url=URL of a service with engines",
    )


def check_service(settings: Run, *, brought: bool) -> None:
    """Checks a configured service. Raises `ServiceCallError` if it does not answer, `BadSettings`
    if it lacks the agent or an engine."""
    if settings.service.url is None:
        return
    url, agent = settings.service.url, settings.agent.name
    with RolloutClient(url, retry_s=FIRST_CONTACT_S) as client:
        status = client.status()
    if agent not in status.agents:
        raise BadSettings(f"the service at {url} has no agent {agent!r}, only {status.agents}")
    healthy = [one for one in status.backends if one.state is BackendState.HEALTHY]
    if not brought and not healthy:
        raise BadSettings(
            f"the service at {url} has no healthy engine",
            hint="start it with --backend URL, or add one: POST /v1/backends",
        )


def check_sandbox(settings: Run) -> None:
    """Checks the sandbox of a service that will be started here. Raises `BadSettings`."""
    if settings.service.url is not None:
        return
    try:
        provider(settings.sandbox.kind)
    except ProRLError as error:
        raise BadSettings(
            f"sandbox={settings.sandbox.kind}: {error.message}",
            hint=error.hint or "scripts/install-sandbox",
        ) from error


def check_images(settings: Run, tasks: Sequence[Task]) -> None:
    """Raises `BadSettings` if the sandbox would refuse a task's image."""
    with_image = [task.task_id for task in tasks if task.image]
    if settings.sandbox.kind == "bubblewrap" and with_image and settings.service.url is None:
        raise BadSettings(
            f"{len(with_image)} tasks, such as {with_image[0]}, have images; bubblewrap runs none",
            hint="set sandbox=apptainer",
        )


def fitting(settings: Training, tasks: Sequence[Task], model: Path) -> list[Task]:
    """Returns the tasks whose first prompt is short enough. Raises `BadSettings` if they are too
    few for a step: the trainers would end immediately, TRL without an error."""
    chat, agents = ChatFormat.load(model), AgentRegistry()
    kept = []
    for task in tasks:
        prompt = agents.make(task).prompt()
        ids = chat.prompt_ids(prompt.messages, tools=prompt.tools, thinking=settings.model.thinking)
        if len(ids) <= settings.agent.max_prompt_tokens:
            kept.append(task)
    if len(kept) < settings.algorithm.prompts_per_step:
        raise BadSettings(
            f"{len(kept)} of {len(tasks)} tasks have a prompt within agent.max_prompt_tokens="
            f"{settings.agent.max_prompt_tokens}: fewer than "
            f"algorithm.prompts_per_step={settings.algorithm.prompts_per_step}"
        )
    return kept
