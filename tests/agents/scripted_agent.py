"""Scripted runs of an agent, with real sandboxes and real scoring."""

import json
from collections.abc import Sequence
from typing import Any

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from prorl_service.schemas import FinishReason, Limits, Sampling
from prorl_service.testing import ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def context(
    agent: AgentHandler,
    replies: Sequence[str],
    chat: ChatFormat,
    scoring: ScoringPool,
    **limits: Any,
) -> RolloutContext:
    prompt = agent.prompt()
    return RolloutContext(
        rollout_id="g.0",
        task=agent.task,
        sampling=Sampling(),
        limits=Limits(**limits),
        seed=None,
        prompt_ids=chat.prompt_ids(prompt.messages, tools=prompt.tools),
        max_model_len=1 << 20,
        chat=chat,
        generator=ScriptedGenerator.of_texts(replies, chat),
        sandboxes=BubblewrapProvider(),
        scoring=scoring,
    )


async def played(
    agent: AgentHandler, rollout: RolloutContext
) -> tuple[FinishReason, list[str], Verdict]:
    """Returns how RUN ended, what the tools answered, and the verdict."""
    async with rollout.sandboxes, rollout.resources:
        await agent.init(rollout)
        reason = await agent.run(rollout)
        await rollout.resources.aclose()  # as the pipeline does between RUN and EVAL
        verdict = await agent.eval(rollout)
    outputs = [record.output for turn in rollout.turns for record in turn.tool_calls]
    return reason, outputs, verdict
