"""The fallback: one agent loop of VeRL is one rollout of the service. It is for the V0 trainer, and
for users who need VeRL's own manager (`prorl.agent_loop=true`).

Each worker process has a gateway of its own. It sees rollouts, not groups, so dynamic sampling and
early stopping are not possible.
"""

import asyncio
import atexit
import logging
import uuid
from pathlib import Path
from typing import Any

from omegaconf import open_dict
from verl.experimental.agent_loop import AgentLoopManager
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from prorl_service.client.policy import HeldPolicy
from prorl_service.client.trainable import failure_of
from prorl_service.errors import ProRLError
from prorl_service.schemas import Limits, Rollout, Sampling
from prorl_verl.connection import Connection
from prorl_verl.rows import Row, rows_of
from prorl_verl.runs import ended
from prorl_verl.settings import Settings, plain, settings_of
from prorl_verl.tasks import group_of, task_of
from prorl_verl.tensors import extra_fields

logger = logging.getLogger(__name__)

LOOPS = Path(__file__).with_name("agent_loop.yaml")
_connecting: "asyncio.Task[Connection] | None" = None


class RolloutFailed(ProRLError):
    """The rollout has nothing to train on."""


def create_manager(config: Any, llm_client: Any, policy: HeldPolicy, **others: Any) -> Any:
    """Returns VeRL's own manager, with this agent loop for all tasks. Its workers act for the
    training that holds `policy`."""
    atexit.register(policy.release)
    manager = AgentLoopManagerTQ if config.trainer.use_v1 else AgentLoopManager
    with open_dict(config):
        config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(LOOPS)
        config.actor_rollout_ref.rollout.agent.default_agent_loop = "prorl"
        config.prorl.training = policy.key
    return manager.create(config=config, llm_client=llm_client, **others)


async def _connection(config: Any, llm_client: Any) -> Connection:
    """Returns the connection of this process."""
    global _connecting
    if _connecting is None:
        sections = plain(config)
        settings = settings_of(sections)
        connection = Connection(sections, settings, llm_client, settings.training)
        _connecting = asyncio.create_task(connection.start())
    return await asyncio.shield(_connecting)


class ProRLAgentLoop(AgentLoopBase):  # type: ignore[misc]
    async def run(
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Raises `RolloutFailed`; under V0, which needs a row, a failed rollout is one masked token
        without a reward of its own (0)."""
        connection = await _connection(self.config, self.server_manager)
        settings = connection.settings
        task = task_of(row, agent=settings.agent, image=settings.image)
        group = group_of(
            row,
            task,
            name=f"{connection.run_id}.{uuid.uuid4().hex}",
            n=1,
            sampling=_sampling(sampling_params, settings),
            limits=settings.limits,
        ).model_copy(update={"n": 1})
        async for _, (rollout,) in ended(connection.client, [group], settings.deadline_s):
            return self._outputs(rollout, settings.limits, settings.overlong)
        raise AssertionError("a group always ends")

    def _outputs(self, rollout: Rollout, limits: Limits, overlong: Any) -> Any:
        assert limits.max_response_tokens is not None
        rows = rows_of(
            rollout,
            max_response_tokens=limits.max_response_tokens,
            overlong=overlong.punishment() if overlong else None,
        )
        outputs = [_output(row, rollout) for row in rows]
        if self.config.trainer.use_v1:
            if not outputs:
                failure = failure_of(rollout)
                raise RolloutFailed(failure.message if failure else "the rollout was cut off")
            return outputs
        if not outputs:
            logger.warning("rollout %s failed: %s", rollout.rollout_id, failure_of(rollout))
            return _output(self._masked_row(), rollout)
        return outputs[-1]

    def _masked_row(self) -> Row:
        end = [int(self.tokenizer.eos_token_id)]
        metrics = {"acc": 0.0, "overlong_penalty": 0.0, "cut_off": 1.0}
        return Row(end, end, [0], [0.0], 0.0, 0, 0, 0, metrics)


def _sampling(params: dict[str, Any], settings: Settings) -> Sampling:
    return Sampling(
        temperature=params["temperature"],
        top_p=params["top_p"],
        top_k=max(0, params["top_k"]),
        thinking=settings.thinking,
        max_tokens_per_turn=settings.max_tokens_per_turn,
    )


def _output(row: Row, rollout: Rollout) -> AgentLoopOutput:
    timings = rollout.timings
    metrics = AgentLoopMetrics(generate_sequences=timings.run_s, compute_score=timings.eval_s)
    return AgentLoopOutput(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_mask=row.response_mask,
        response_logprobs=row.logprobs,
        reward_score=row.reward,
        num_turns=row.turns,
        metrics=metrics,
        extra_fields=extra_fields(row),
    )
