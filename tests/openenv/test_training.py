"""GRPO with TRL's stock trainer in environments of real OpenEnv servers, as they come: each has
room for one session. The policy begins by imitating episodes, right and wrong ones."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_service import local
from prorl_service.agents.base import Prompt
from prorl_service.client.openenv import openenv_tasks
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.schemas import Limits, Message, Rollout, Sampling, Task
from prorl_service.tokens.formats import ToolSchema
from prorl_service.tools.base import function_schema
from prorl_service.tools.openenv.servers import OpenEnvServers, Wanted
from prorl_service.tools.spec import OpenEnvSpec
from prorl_trl import ProRLRollout, with_task
from recipes.common.training.imitation import Transcript, tool_call, warm_started
from tests.openenv.processes import Server, echo_server, needs_openenv, ors_server
from tests.trl.training import SMALL, logged

pytestmark = [
    needs_openenv,
    pytest.mark.filterwarnings(
        "ignore:.*rollout_func.*experimental:UserWarning",
        "ignore:.*gradient_checkpointing.*:FutureWarning",
    ),
    pytest.mark.processes,
    pytest.mark.timeout(1200),
]

IMITATION = Imitation(steps=150, batch_size=16, learning_rate=6e-3)
VOCAB_SIZE = 512
OPTIONS = {"max_completion_length": 300, "learning_rate": 1e-4}
"""With the rate of other tests, one step has this policy forget how to call a tool."""
SAYS = "Say something long."
READY = '{"echoed_message": "Echo Env environment ready!", "message_length": 0}'


async def _schemas(url: str) -> list[ToolSchema]:
    async with OpenEnvServers([OpenEnvSpec("it", url)]) as servers:
        return [function_schema(tool) for tool in servers.tools(Wanted("it"))]


def _prompt(text: str, tools: Sequence[ToolSchema]) -> Prompt:
    return Prompt([Message(role="user", content=text)], tools)


def _echo_transcripts(tools: Sequence[ToolSchema], chance: Random) -> list[Transcript]:
    found = []
    for _ in range(200):
        said = "a" * chance.randint(1, 9)
        answer = f'{{"echoed_message": "{said}", "message_length": {len(said)}}}'
        replies = (tool_call("step", {"message": said}), "Done.")
        found.append(Transcript(_prompt(f"{SAYS}\n\n{READY}", tools), replies, (answer,)))
    return found


def _sum_transcripts(
    tools: Sequence[ToolSchema], chance: Random, instruction: str
) -> list[Transcript]:
    found = []
    for _ in range(200):
        a = chance.randint(1, 6)
        prompt = _prompt(f"{instruction}\n\nWhat is {a} + {a + 1}?", tools)
        tried = [chance.randint(1, 13)]
        while tried[-1] != 2 * a + 1 and len(tried) < 3:
            tried.append(chance.choice([2 * a + 1, chance.randint(1, 13)]))
        replies = [tool_call("answer", {"number": number}) for number in tried]
        found.append(Transcript(prompt, replies, [f"{number} is wrong" for number in tried[:-1]]))
    return found


def _train(
    server: Server, tasks: Sequence[Task], policy: Path, directory: Path
) -> tuple[GRPOTrainer, list[Rollout]]:
    observed: list[Rollout] = []
    rows = [
        {
            "prompt": with_task(
                [message.model_dump(include={"role", "content"}) for message in task.messages],
                task_id=task.task_id,
                agent=task.agent,
                data=task.data,
            )
        }
        for task in tasks
    ]
    options = ["--sandbox", "process", "--openenv", f"it={server.url}"]
    with (
        local.engine(policy, log=directory / "engine.log") as engine,
        local.service([engine.url], log=directory / "service.log", options=options) as service,
    ):
        rollouts = ProRLRollout(
            service.url,
            sampling=Sampling(max_tokens_per_turn=60),
            limits=Limits(max_turns=4),
            overlong="keep",
            deadline_s=600,
            observe=observed.extend,
        )
        trainer = GRPOTrainer(
            model=str(policy),
            args=GRPOConfig(output_dir=str(directory / "trained"), **SMALL | OPTIONS),
            train_dataset=Dataset.from_list(rows),
            rollout_func=rollouts,
            reward_funcs=rollouts.reward_funcs,
        )
        trainer.train()
    return trainer, observed


def _has_learnt(trainer: GRPOTrainer, observed: Sequence[Rollout]) -> None:
    assert len({rollout.rollout_id for rollout in observed}) == 16
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert max(logged(trainer, "reward_std")) > 0
    assert max(logged(trainer, "grad_norm")) > 0
    assert min(logged(trainer, "prorl/reward/steps")) > 0
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-3
    for rollout in observed:
        assert rollout.report is not None
        rewards = rollout.report["rewards"]
        assert isinstance(rewards, list)
        given = [one for one in rewards if isinstance(one, int | float)]
        assert rollout.reward == pytest.approx(sum(given))


def test_a_policy_is_trained_in_the_template_of_openenv(tmp_path: Path) -> None:
    serving: AbstractContextManager[Server] = echo_server(tmp_path)
    with serving as server:
        tools = asyncio.run(_schemas(server.url))
        policy = warm_started(tmp_path, _echo_transcripts(tools, Random(0)), IMITATION, VOCAB_SIZE)
        tasks = [
            Task(
                task_id=f"say-{number}",
                agent="openenv",
                messages=[Message(role="user", content=SAYS)],
                data={"server": "it"},
            )
            for number in range(8)
        ]
        _has_learnt(*_train(server, tasks, policy, tmp_path))


@pytest.mark.on_demand
def test_a_policy_is_trained_in_an_environment_that_openenv_imports(tmp_path: Path) -> None:
    with ors_server(tmp_path) as server:
        tools = asyncio.run(_schemas(server.url))
        tasks = openenv_tasks(server.url, server="it")
        instruction = tasks[0].messages[0].content
        transcripts = _sum_transcripts(tools, Random(0), instruction)
        policy = warm_started(tmp_path, transcripts, IMITATION, VOCAB_SIZE)
        _has_learnt(*_train(server, tasks, policy, tmp_path))
