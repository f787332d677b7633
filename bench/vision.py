"""Pictures: whether trainer and engine see the same, and whether a policy learns to look.

`swap`: two turns of a random policy with two pictures, one of them from a tool; the logprobs of a
trainer's model with these pictures, and with another in the place of one. `hostile`: files that
are no pictures, or ambiguous ones, in tasks and in each dialect of the gateway. A tiny Qwen2.5-VL
learns by reward alone which colour a square has, with TRL's stock trainer: in a picture of the
`question`, on three seeds, and in a `file` that it has to look at; `verl`: in a question, with
VeRL's (first `scripts/setup-verl`). Takes an hour.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from math import isnan
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.gateway.dialects import DIALECTS
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Limits, Sampling, Start
from prorl_service.schemas.pictures import canonical, id_of
from recipes.demo.evaluate import evaluate, success
from recipes.demo.train import TrainConfig, make_trainer
from recipes.math_code.offline.look import CONTEXT, LIMITS, instances, policy
from tests.gateway.test_pictures import read
from tests.pictures import largest_difference, looking, png
from tests.tokens.test_pictures import HOSTILE, OTHERS

SEEDS = 3
STEPS = 80
GROUPS = 16
LEARNING_RATE = 1e-3
HELDOUT = 200
SWAPPED = 24
CACHE = Path("outputs/demo/cache").absolute()
VERL_RUN = "bench.verl.other_policies"


@contextmanager
def served(model: Path, directory: Path, context: int) -> Iterator[tuple[str, RolloutClient]]:
    options = ["--max-model-len", str(context)]
    with (
        local.engine(model, log=directory / "engine.log", options=options) as engine,
        local.service([engine.url], log=directory / "service.log") as service,
        RolloutClient(service.url) as client,
    ):
        yield service.url, client


def swap(quick: bool) -> frame.Found:
    right, wrong = list[float](), list[float]()
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        model = Path(name) / "model"
        build_tiny_model(model, sees=True)
        with served(model, Path(name), 1024) as (_, client):
            for number in range(4 if quick else SWAPPED):
                asked, other = png(seed=number), png(seed=1000 + number)
                group = looking(
                    f"swap-{number}",
                    asked,
                    start=Start(share=1.0),
                    limits=Limits(max_turns=2, max_response_tokens=400),
                    sampling=Sampling(seed=number, max_tokens_per_turn=150),
                )
                client.submit([group])
                [rollout] = client.wait(group.rollout_ids(), 120)
                assert rollout.trajectory is not None, rollout.error
                [segment], contents = rollout.trajectory.segments, rollout.trajectory.contents()
                swapped = contents | {id_of(asked): other}
                right.append(largest_difference(model, segment, contents))
                wrong.append(largest_difference(model, segment, swapped))
    right, wrong = ([one for one in some if not isnan(one)] for some in (right, wrong))
    headline = {
        "swap_rollouts": len(right),
        "logprob_diff_max": max(right),
        "swap_nats_min": round(min(wrong), 3),
        "swap_nats_p50": round(median(wrong), 3),
    }
    return frame.Found([headline], headline)


def hostile(quick: bool) -> frame.Found:
    """Files that cannot be seen, and those that programs show in two ways, in tasks of a service
    and in requests of a harness. All but the first are shown once they are canonical."""
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        model = Path(name) / "model"
        build_tiny_model(model, sees=True)
        with served(model, Path(name), 1024) as (_, client):
            failed = [one for one in HOSTILE if not _is_refused(client, HOSTILE[one])]
            failed += [one for one in OTHERS if not _is_refused(client, OTHERS[one])]
            made = [canonical(one) for one in OTHERS.values()]
            groups = [looking(f"seen-{number}", one) for number, one in enumerate(made)]
            client.submit(groups)
            ended = client.wait([id_ for one in groups for id_ in one.rollout_ids()], 120)
            failed += [one.rollout_id for one in ended if one.trajectory is None]
    dialects = [
        ending
        for ending in DIALECTS
        if not any(_reads(ending, one) for one in HOSTILE.values())
        and all(_reads(ending, one) for one in OTHERS.values())
    ]
    headline = {
        "hostile_pictures": len(HOSTILE) + len(OTHERS),
        "hostile_failures": len(failed),
        "dialects": len(dialects),
    }
    return frame.Found([headline], headline)


def _is_refused(client: RolloutClient, content: bytes) -> bool:
    try:
        client.submit([looking("refused", content)])
    except ServiceCallError as error:
        return error.http_status == HTTPStatus.UNPROCESSABLE_ENTITY
    return False


def _reads(ending: str, content: bytes) -> bool:
    """Returns whether both pictures of a request reach a policy that sees."""
    call = read(ending, content, sees=True)
    return [len(one.message.pictures) for one in call.conversation] == [1, 0, 1]


def question(quick: bool) -> frame.Found:
    return _learnt("question", range(1 if quick else SEEDS), quick=quick)


def file(quick: bool) -> frame.Found:
    return _learnt("file", [0], quick=quick)


def verl(quick: bool) -> frame.Found | None:
    python = frame.environment("verl")
    if python is None:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    rows, curves = list[frame.Row](), dict[str, list[float]]()
    for seed in range(1 if quick else SEEDS):
        with TemporaryDirectory(prefix="prorl-bench-") as name:
            output = Path(name)
            (output / "cache").symlink_to(CACHE)
            steps = 2 if quick else STEPS
            frame.in_environment(python, "verl", VERL_RUN, "look", output, steps, seed)
            made = json.loads((output / "summary.json").read_text())
        before, after = made["heldout"]
        row = {"seed": seed, "before": before, "after": after}
        row |= {"probs_diff_max": made["probs_diff_max"]}
        rows.append(row | {"step_s": round(fmean(made["step_s"]), 2)})
        print(rows[-1], flush=True)
        curves[f"VeRL, {seed}"] = [round(one, 3) for one in made["success"]]
    headline = {
        "success_before_verl": round(fmean(one["before"] for one in rows), 3),
        "success_after_verl": round(fmean(one["after"] for one in rows), 3),
        "verl_probs_diff_max": max(one["probs_diff_max"] for one in rows),
    }
    return frame.Found(rows, headline, {"verl_curves": curves})


def _learnt(place: str, seeds: Iterable[int], *, quick: bool) -> frame.Found:
    rows, curves = list[frame.Row](), dict[str, list[float]]()
    for seed in seeds:
        row, curves[f"{place}, {seed}"] = _learned(2 if quick else STEPS, seed, place)
        rows.append(row)
        print(row, flush=True)
    prefix = "" if place == "question" else f"{place}_"
    headline = {
        f"{prefix}success_before": round(fmean(one["before"] for one in rows), 3),
        f"{prefix}success_after_trl": round(fmean(one["after"] for one in rows), 3),
        f"{prefix}learn_logprob_diff_max": max(one["logprob_diff_max"] for one in rows),
    }
    return frame.Found(rows, headline, {f"{place}_curves": curves})


def _learned(steps: int, seed: int, place: str) -> tuple[frame.Row, list[float]]:
    model, is_file = policy(CACHE, seed=seed), place == "file"
    of_split = {one: instances(one, seed=seed, is_file=is_file) for one in ("train", "heldout")}
    tasks = [one.task() for one in islice(of_split["train"], GROUPS * steps)]
    heldout = [one.task() for one in islice(of_split["heldout"], HELDOUT)]
    config = TrainConfig(
        seed=seed,
        steps=steps,
        groups_per_step=GROUPS,
        learning_rate=LEARNING_RATE,
        schedule="constant",
        limits=LIMITS,
    )
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory = Path(name)
        with served(model, directory, CONTEXT) as (url, client):
            before = success(evaluate(client, heldout, name="before", n=1, limits=LIMITS))
            trainer = make_trainer(model, url, directory, config, tasks=tasks)
            trainer.train()
            trainer.rollout_func.push_weights()
            after = success(evaluate(client, heldout, name="after", n=1, limits=LIMITS))
    log = [one for one in trainer.state.log_history if "reward" in one]
    took_s = next(
        one["train_runtime"] for one in trainer.state.log_history if "train_runtime" in one
    )
    row: frame.Row = {
        "picture": place,
        "seed": seed,
        "before": before,
        "after": after,
        "logprob_diff_max": max(one["sampling/sampling_logp_difference/max"] for one in log),
        "step_s": round(took_s / steps, 2),
    }
    return row, [round(one["reward"], 3) for one in log]


if __name__ == "__main__":
    frame.run(
        "vision",
        {"swap": swap, "hostile": hostile, "question": question, "file": file, "verl": verl},
    )
