"""Tinker's API against SkyRL's server on CPU: the demo's task, learnt by an adapter.

A tiny agent, warm-started as the demo's, is evaluated on held-out tasks before and after. Each
sampled token is compared with the server's own logprob, and its version with the step's. Takes half
an hour. Needs the environment of `scripts/setup-tinker`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import tinker

from bench import frame
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import Rollout
from prorl_tinker import TinkerRollouts, lora_training_client
from prorl_tinker.rollouts import StepData
from recipes.common import tinker_server
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import CONTEXT, LIMITS, instances
from recipes.demo.warm_start import WarmStart, warm_started

STEPS = 100
GROUPS, GROUP_SIZE = 8, 8
RANK, LEARNING_RATE = 32, 5e-3
HELDOUT_PER_FAMILY, HELDOUT_ROLLOUTS = 50, 2
PLUGIN = frame.ROOT / "plugins/tinker/prorl_tinker"


@dataclass(slots=True)
class Seen:
    """Figures of the steps so far."""

    success: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    versions_wrong: int = 0
    tokens: int = 0

    def add(self, step: StepData, metrics: dict[str, float], version: int) -> None:
        rollouts = [one for group in step.groups for one in group]
        self.success.append(metrics["prorl/reward/correct"])
        if step.data:
            self.largest.append(metrics["prorl/off_policy_max"])
        found = [one for rollout in rollouts for one in sampled_versions(rollout)]
        self.tokens += len(found)
        self.versions_wrong += sum(one != version for one in found)


def sampled_versions(rollout: Rollout) -> list[int]:
    """Returns the version of each sampled token."""
    return [
        version
        for one in (rollout.trajectory.segments if rollout.trajectory else ())
        for version, mask in zip(one.policy_versions, one.loss_mask, strict=True)
        if mask
    ]


def measure(quick: bool) -> frame.Found:
    policy = warm_started(Path("outputs/demo/cache").absolute(), WarmStart(seed=0))
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory, options = Path(name), ["--sandbox", "bubblewrap"]
        with (
            tinker_server.running(policy, directory) as server,
            local.service([], log=directory / "service.log", options=options) as service,
        ):
            return learn(policy, server.url, service.url, 2 if quick else STEPS)


def learn(policy: Path, server: str, service: str, steps: int) -> frame.Found:
    own = tinker.ServiceClient(base_url=server, api_key="tml-dummy")
    client = lora_training_client(own, base_model=str(policy), rank=RANK)
    tasks = [one.task() for one in instances("train", steps * GROUPS // 2, seed=0)]
    heldout = [one.task() for one in instances("heldout", HELDOUT_PER_FAMILY, seed=0)]
    seen = Seen()
    with (
        TinkerRollouts(
            service,
            client,
            tasks,
            groups_per_step=GROUPS,
            group_size=GROUP_SIZE,
            limits=LIMITS,
            max_model_len=CONTEXT,
        ) as rollouts,
        RolloutClient(service) as reader,
    ):

        def heldout_success(name: str) -> float:
            rollouts.push_weights()
            return success(evaluate(reader, heldout, name=name, n=HELDOUT_ROLLOUTS, limits=LIMITS))

        before = heldout_success("before")
        for number in range(1, steps + 1):
            step = rollouts.step()
            metrics = step.metrics
            if step.data:
                future = client.forward_backward(step.data, "importance_sampling")
                rate = LEARNING_RATE * (1 - (number - 1) / steps)
                update = client.optim_step(tinker.AdamParams(learning_rate=rate))
                metrics = rollouts.check(step.data, future)
                update.result()
            seen.add(step, metrics, number + 1)
            print(f"  step {number}: success {seen.success[-1]:.2f}", flush=True)
        after = heldout_success("after")
    lines = sum(len(one.read_text().splitlines()) for one in PLUGIN.glob("*.py"))
    headline = {
        "logprob_diff_max": max(seen.largest),
        "versions_wrong": seen.versions_wrong,
        "success_before": before,
        "success_after": after,
        "plugin_lines": lines,
        "steps": steps,
        "rollouts": steps * GROUPS * GROUP_SIZE,
        "sampled_tokens": seen.tokens,
    }
    return frame.Found([], headline, {"success": [round(one, 3) for one in seen.success]})


if __name__ == "__main__":
    frame.run("tinker", {"tinker": measure})
