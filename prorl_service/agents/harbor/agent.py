"""The agent for tasks in Harbor's format: it works in the task's image, a verifier grades what it
left.

RUN ends with the end of all processes; what the agent wrote goes to EVAL, where the verifier runs
in a fresh sandbox (`verification`). Tests are never in the sandbox of RUN. A task may have several
steps: each is a conversation of its own in the same sandbox, and limits hold for each. Its verdict
is found on a copy, so that no step sees the tests of another.
"""

import errno
import logging
from itertools import islice
from typing import ClassVar

from pydantic import BaseModel, JsonValue

from prorl_service.agents.base import Prompt, RolloutContext, Verdict, with_system
from prorl_service.agents.harbor import rewards
from prorl_service.agents.harbor.artifacts import collected
from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.rewards import NoReward, Rewards
from prorl_service.agents.harbor.verification import Verified, Work, verify
from prorl_service.agents.harbor.workplace import LOGS, Workplace, quietly
from prorl_service.agents.loop import ToolAgent
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.sandbox.layers import Layer
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.schemas.numbers import is_score
from prorl_service.tools.mcp.inside import started

log = logging.getLogger(__name__)

SYSTEM_PROMPT = """\
You work in a Linux sandbox with a shell. Do what the user asks, by commands and edits; do not \
only write about it. The state of the sandbox is your answer.\
"""
SKILLS = " The directory {skills} holds instructions that may help."
LOG_CHARS = 4000
LEFT_OUT = (
    "{} files were left out, as they are not declared as work: `prorl harbor check` finds what the"
    " solution needs, and `work` or `allow` name it"
)
MARGIN_S = 30.0
"""Seconds of EVAL's budget beyond the verifiers' own limits."""


class HarborAgent(ToolAgent):
    name: ClassVar[str] = "harbor"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT, Stage.EVAL})
    data_model: ClassVar[type[BaseModel] | None] = HarborData
    keeps_verifiers: ClassVar[bool] = False
    """Whether verdicts come with what the verifier wrote."""
    shown_paths: ClassVar[int] = 50
    """Maximum of paths that a report names."""

    def __init__(self, task: Task) -> None:
        self.data = HarborData.model_validate(task.data)
        super().__init__(task, self.data.tools)
        self.uses = self.uses.also({"mcp": "mcp"} if self.data.mcp else {})
        self._workplace: Workplace | None = None
        self._step = self.data.steps[0]
        self._work: list[tuple[Step, Work]] = []
        """Steps whose verdict is still to be found."""
        self._verified: list[tuple[Step, Verified]] = []

    @property
    def has_own_loop(self) -> bool:
        """True unless another program is in the loop's place."""
        return self.taker is None

    # --- prompts --------------------------------------------------------------------------------

    def prompt(self) -> Prompt:
        """Returns the current step's instruction, after this agent's system message unless the
        task has its own."""
        messages = with_system(self._system() + self.how_to_end(), self._instruction())
        return self.with_tools(messages)

    def brief(self) -> str:
        return "\n\n".join(message.content for message in self._instruction())

    def _instruction(self) -> list[Message]:
        if self._step is self.data.steps[0]:
            return list(self.task.messages)
        return [Message(role="user", content=self._step.instruction)]

    def _system(self) -> str:
        return SYSTEM_PROMPT + (SKILLS.format(skills=self.data.skills) if self.data.skills else "")

    # --- stages ---------------------------------------------------------------------------------

    async def init(self, rollout: RolloutContext) -> None:
        needed_s = sum(step.verifier.timeout_s for step in self.data.steps) + MARGIN_S
        if needed_s > rollout.limits.eval_timeout_s:
            raise TaskError(
                f"its verifiers may take {needed_s:g} s with a margin, more than EVAL's budget of"
                f" {rollout.limits.eval_timeout_s:g} s",
                hint="raise eval_timeout_s",
            )
        self._workplace = await Workplace.opened(rollout, self.data.place, user=self._step.user)
        self._sandbox = self._workplace.sandbox
        await self._workplace.connect(rollout, self.data.place.network)
        await self._workplace.prepare()
        await self._workplace.check_health(self.data.place.healthcheck)
        await self._begin(self._workplace, self._step)
        await self._add_tools(rollout, self._workplace)

    async def _add_tools(self, rollout: RolloutContext, workplace: Workplace) -> None:
        """Starts the task's MCP servers: from then on, prompts offer their tools, too."""
        if self.data.mcp and not self.has_own_loop:
            raise TaskError(
                "harnesses cannot use the task's MCP servers",
                hint="run it with the service's own loop",
            )
        for server in self.data.mcp:
            log_file = f"{LOGS[0]}/mcp-{server.name}.txt"
            running = started(workplace.sandbox, server.name, server.command, log_file)
            self.tools += (await rollout.attempt.resources.enter_async_context(running)).tools
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TaskError(f"several tools have the same name: {', '.join(twice)}")
        if self.data.mcp:
            rollout.begin(self.prompt())

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._workplace is not None
        reason = FinishReason.FINISHED
        for step in self.data.steps:
            if step is not self.data.steps[0]:
                await self._go_on(rollout, self._workplace, step)
            rollout.attempt.turns_most_s = step.timeout_s
            reason = await self.call_tools(rollout)
            self._work.append((step, await self._left(self._workplace, step)))
            if rollout.attempt.turns_left_s <= 0 or await self._ends_after(rollout, step):
                break
        return reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await self._verify_all(rollout)
        found = [verified.rewards for _, verified in self._verified]
        if rollout.attempt.turns_left_s <= 0:  # steps that the agent was too slow for
            found += [{self.data.reward_key: 0.0}] * (len(self.data.steps) - len(found))
        combined = rewards.combined(found, final=self.data.reward == "final")
        try:
            reward = rewards.scalar(combined, self.data.reward_key)
        except NoReward as error:
            raise EvaluatorError(str(error)) from None
        log.info("%s: reward %g", rollout.rollout_id, reward)
        return Verdict(reward, self._components(combined), self._report())

    # --- steps ----------------------------------------------------------------------------------

    async def _go_on(self, rollout: RolloutContext, workplace: Workplace, step: Step) -> None:
        self._step = step
        await self._begin(workplace, step)
        if self.has_own_loop:
            rollout.begin(self.prompt())

    async def _begin(self, workplace: Workplace, step: Step) -> None:
        if step.files is not None:
            await workplace.add_files(step.files, has_setup=step.has_setup)
        await workplace.check_health(step.healthcheck)

    async def _left(self, workplace: Workplace, step: Step) -> Work:
        """Returns what the agent left, after the task's own commands. Its processes rest
        meanwhile; after the last step they end."""
        sandbox = workplace.sandbox
        for hook in step.verifier.collect:
            await quietly(sandbox, f"( {hook.command}\n)", hook.timeout_s)
        if step is not self.data.steps[-1]:
            async with sandbox.suspended():
                return await self._saved(workplace, step)
        await sandbox.end_processes()
        return await self._saved(workplace, step)

    async def _saved(self, workplace: Workplace, step: Step) -> Work:
        artifacts = await collected(workplace.sandbox, step.artifacts, workplace.workdir)
        layer: Layer | None = None
        if step.verifier.place is None:
            try:
                most = 2 * self.data.place.limits().disk_mb << 20
                layer = await workplace.sandbox.save_layer(max_bytes=most)
            except OSError as error:
                if error.errno not in (errno.EFBIG, errno.ELOOP):
                    raise
        return Work(layer, artifacts)

    async def _ends_after(self, rollout: RolloutContext, step: Step) -> bool:
        """Returns whether the rewards of this step are too low to go on. Finds them if they
        matter, at no cost for the agent."""
        if not step.min_reward or step is self.data.steps[-1]:
            return False
        with rollout.attempt.clock.waiting():
            await self._verify_all(rollout)
        return rewards.falls_short(self._verified[-1][1].rewards, step.min_reward)

    async def _verify_all(self, rollout: RolloutContext) -> None:
        while self._work:
            step, work = self._work.pop(0)
            verified = await verify(rollout, self.data, step, work, keep=self.keeps_verifiers)
            self.verified(step, work, verified)

    def verified(self, step: Step, work: Work, verified: Verified) -> None:
        """Takes the verdict on a step."""
        self._verified.append((step, verified))

    # --- for people -----------------------------------------------------------------------------

    def _components(self, combined: Rewards) -> dict[str, float]:
        steps = {
            f"step_{step.name}": verified.rewards.get(self.data.reward_key, 0.0)
            for step, verified in self._verified
            if step.name
        }
        broken = sum(bool(verified.problem) for _, verified in self._verified)
        refused = sum(sum(verified.refused.values()) for _, verified in self._verified)
        return {
            **{key: value for key, value in {**combined, **steps}.items() if is_score(value)},
            "verifier_broken": float(broken),
            "guard_refused": float(refused),
        }

    def _report(self) -> dict[str, JsonValue]:
        return {
            "about": self.data.about,
            "hosts": {**(self._workplace.hosts_reached() if self._workplace else {})},
            "steps": [
                {
                    "name": step.name,
                    "rewards": dict(verified.rewards),
                    "problem": verified.problem,
                    "remark": verified.remark,
                    "absent": verified.is_absent,
                    "left_out": _left_out(verified),
                    "refused": [*islice(verified.refused, self.shown_paths)],
                    "hosts": {**verified.hosts},
                    "log": verified.log[-LOG_CHARS:],
                }
                for step, verified in self._verified
            ],
        }


def _left_out(verified: Verified) -> str:
    files = sum(verified.refused.values())
    return LEFT_OUT.format(files) if files else ""
