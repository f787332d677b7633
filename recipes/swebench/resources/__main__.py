"""Estimates what a training run on SWE data needs, before it is started.

`python -m recipes.swebench.resources --model qwen3_8b --nodes 4` prints the inputs with their
sources, and what follows by the formulas of docs/swe.md.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveFloat, PositiveInt
from cyclopts.validators import Number
from rich.console import Console
from rich.table import Table

from prorl_service.cli.program import run
from prorl_service.errors import InvalidRequest
from recipes.common.training.memory import SHAPES
from recipes.swebench.prepare import Manifest
from recipes.swebench.resources.costs import RESULTS, Costs, read_costs
from recipes.swebench.resources.formulas import Needs, Run, check, needs

DEFAULT = Run(SHAPES["qwen3_8b"])


def show(run: Run, costs: Costs, found: Needs, console: Console) -> None:
    """Prints the inputs with their sources, and what follows."""
    inputs = Table("given", "", "default from", box=None)
    for row in _inputs(run, costs):
        inputs.add_row(*row)
    console.print(inputs)
    console.print()
    table = Table("needed", "", f"each of {run.nodes} nodes", box=None)
    for row in _outputs(run, found):
        table.add_row(*row)
    console.print(table)


def _inputs(run: Run, costs: Costs) -> list[tuple[str, str, str]]:
    measured = "measured: bench/results"
    return [
        ("prompts, rollouts of each", f"{run.batch}, {run.n}", "ProRL Agent's paper"),
        ("oversubscription", f"{run.oversubscription:g}", "none"),
        ("turns: limit, mean", f"{run.turns}, {run.mean_turns:g}", "ProRL Agent's blog; the limit"),
        (
            "model's time for a turn",
            f"{run.model_s:g} s",
            "NeMo Gym: at most, at 100 turns in steps of 20 minutes",
        ),
        ("context", f"{run.context} tokens", "ProRL Agent's script"),
        ("rollouts at once", f"{run.slots or 'all'} a node", "all"),
        ("GPUs", f"{run.gpus} of {run.gpu_gb:g} GB", "ProRL Agent's paper: H100"),
        ("runs of the tests by the model", f"{run.test_runs:g}", "assumed"),
        ("memory of a test run", f"{run.test_mb:g} MB", "the sandboxes' limit: at most"),
        ("images", f"{run.images} of {run.image_mb:g} MB", "SkyRL-v0; docs/swe.md"),
        ("processor for a turn", f"{costs.turn_cpu_ms:.2f} ms", f"{measured}/load.json"),
        ("grading", f"{costs.grading_s:g} s", f"{measured}/swe_offline.json"),
        (
            "service: at rest, for a rollout",
            f"{costs.service_mb:.0f} MB, {costs.service_mb_per_rollout:.2f} MB",
            f"{measured}/load.json",
        ),
        (
            "container of an image, sandbox",
            f"{costs.image_mb:.0f} MB, {costs.sandbox_mb:.1f} MB",
            f"{measured}/tools.json",
        ),
    ]


def _outputs(run: Run, found: Needs) -> list[tuple[str, str, str]]:
    def each(value: float, unit: str, digits: int = 1) -> tuple[str, str]:
        return f"{value:.{digits}f} {unit}", f"{value / run.nodes:.{digits}f} {unit}"

    return [
        ("rollouts of a step", *each(found.rollouts, "", 0)),
        ("sandboxes at once", *each(found.sandboxes, "", 0)),
        ("cores in use", *each(found.cores, "")),
        ("memory, without files that are written", *each(found.memory_gb, "GB")),
        ("service's process", "", f"{found.service_mb:.0f} MB"),
        ("disk for images", f"{found.disk_gb:.0f} GB", "the same, unless the cache is shared"),
        ("rollouts of a step take", f"{found.step_s / 60:.1f} minutes", ""),
        ("slots in use", f"{found.slot_use:.0%}", ""),
        ("model calls at once", f"{found.engine_calls:.0f}", ""),
        ("full contexts in the engines' caches", f"{found.engine_room}", ""),
    ]


def main(
    *,
    model: Annotated[str, Parameter(help=f"One of {', '.join(SHAPES)}.")] = "qwen3_8b",
    batch: PositiveInt = DEFAULT.batch,
    n: PositiveInt = DEFAULT.n,
    oversubscription: Annotated[
        float, Parameter(validator=Number(gte=1))
    ] = DEFAULT.oversubscription,
    turns: PositiveInt = DEFAULT.turns,
    mean_turns: Annotated[float | None, Parameter(help="Default: --turns.")] = None,
    model_s: Annotated[
        PositiveFloat, Parameter(help="Engine's seconds for a turn.")
    ] = DEFAULT.model_s,
    context: PositiveInt = DEFAULT.context,
    nodes: Annotated[PositiveInt, Parameter(help="Hosts that run the service.")] = DEFAULT.nodes,
    slots: Annotated[
        PositiveInt | None, Parameter(help="--run-workers of each host; default: no limit.")
    ] = None,
    test_runs: NonNegativeFloat = DEFAULT.test_runs,
    test_mb: NonNegativeFloat = DEFAULT.test_mb,
    prepared: Annotated[
        Path | None, Parameter(help="Output of recipes.swebench.prepare, for its images.")
    ] = None,
    images: PositiveInt = DEFAULT.images,
    image_mb: NonNegativeFloat = DEFAULT.image_mb,
    gpus: PositiveInt = DEFAULT.gpus,
    gpu_gb: NonNegativeFloat = DEFAULT.gpu_gb,
    tensor_parallel: PositiveInt = DEFAULT.tensor_parallel,
    grading_s: Annotated[
        NonNegativeFloat | None, Parameter(help="Default: measured on the offline instances.")
    ] = None,
    results: Annotated[Path, Parameter(help="Directory of measurements.")] = RESULTS,
) -> None:
    """Estimate what a training run on SWE data needs."""
    if model not in SHAPES:
        raise InvalidRequest.of_field("model", f"must be one of {', '.join(SHAPES)}")
    if prepared is not None:
        images, image_mb = _prepared(prepared)
    run = Run(
        SHAPES[model],
        batch=batch,
        n=n,
        oversubscription=oversubscription,
        turns=turns,
        mean_turns=turns if mean_turns is None else mean_turns,
        model_s=model_s,
        context=context,
        nodes=nodes,
        slots=slots,
        test_runs=test_runs,
        test_mb=test_mb,
        images=images,
        image_mb=image_mb,
        gpus=gpus,
        gpu_gb=gpu_gb,
        tensor_parallel=tensor_parallel,
    )
    check(run)
    costs = read_costs(results, grading_s=grading_s)
    show(run, costs, needs(run, costs), Console())


def _prepared(directory: Path) -> tuple[int, float]:
    """Returns number and mean size, MB, of the images that a data set was prepared with."""
    path = directory / "manifest.json"
    if not path.exists():
        raise InvalidRequest.of_field("prepared", f"there is no {path}")
    images = Manifest.model_validate_json(path.read_text()).images
    if not images:
        raise InvalidRequest.of_field("prepared", f"{path} has no images: prepared without")
    return len(images), sum(image.bytes for image in images.values()) / len(images) / 1e6


if __name__ == "__main__":
    run(main)
