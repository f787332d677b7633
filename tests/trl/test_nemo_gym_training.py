"""GRPO training on CPU on rows of NeMo Gym's wheel, graded by its own servers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_service import local
from prorl_service.client.nemo_gym import chat_messages
from prorl_service.schemas import Rollout, RolloutState, Sampling
from prorl_trl import ProRLRollout, with_task
from tests.agents.nemo_gym import gym_servers
from tests.agents.nemo_gym.gym_servers import COUNTER, REASONING, WEATHER
from tests.trl.training import SMALL, logged

pytestmark = [
    pytest.mark.processes,
    gym_servers.NEEDED,
]

SERVERS = (WEATHER, COUNTER, REASONING)


@pytest.fixture(scope="module")
def url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the URL of a service that knows a server of each name."""
    directory = tmp_path_factory.mktemp("gyms")
    with ExitStack() as stack:
        gyms = [stack.enter_context(gym_servers.starting(name, directory)) for name in SERVERS]
        for gym in gyms:
            gym_servers.until_up(gym)
        named = [f"--nemo-gym={name}={gym.url}" for name, gym in zip(SERVERS, gyms, strict=True)]
        log = directory / "engine.log"
        options = ["--max-model-len", "4096"]
        engine = stack.enter_context(local.engine(policy, log=log, options=options))
        options = ["--sandbox", "process", "--warm-sandboxes", "0", *named]
        log = directory / "service.log"
        yield stack.enter_context(local.service([engine.url], log=log, options=options)).url


def rows(name: str) -> Dataset:
    tasks = gym_servers.tasks_of(name)[:4]
    return Dataset.from_list(
        [
            {
                "prompt": with_task(
                    chat_messages(task), task_id=task.task_id, agent=task.agent, data=task.data
                )
            }
            for task in tasks
        ]
    )


@pytest.mark.parametrize(
    "name", [SERVERS[0], *(pytest.param(one, marks=pytest.mark.on_demand) for one in SERVERS[1:])]
)
def test_a_policy_trains_on_a_servers_rows(
    url: str, policy: Path, tmp_path: Path, name: str
) -> None:
    observed: list[Rollout] = []
    rollouts = ProRLRollout(
        url,
        overlong="keep",
        sampling=Sampling(max_tokens_per_turn=8),
        deadline_s=300,
        observe=observed.extend,
    )
    trainer = GRPOTrainer(
        model=str(policy),
        args=GRPOConfig(output_dir=str(tmp_path), **SMALL),
        train_dataset=rows(name),
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
    trainer.train()
    assert trainer.state.global_step == 2
    assert len(observed) == 16
    assert all(one.state is RolloutState.DONE for one in observed), observed[0].error
    assert {one.report["server"] for one in observed if one.report is not None} == {name}
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4
