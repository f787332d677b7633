"""The verdict on an agent's work: the task's verifier, run in a sandbox in which nothing else runs.

A verifier that shares the agent's sandbox gets a fresh one with the agent's work, as `guarding`
defines it. One with a sandbox of its own gets the artifacts only. Nothing that the agent's work
does to the verifier becomes an error of the service: it is a reward of 0.
"""

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harbor.artifacts import Artifacts
from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.guarding import Surroundings, pin
from prorl_service.agents.harbor.rewards import (
    JSON_FILE,
    TEXT_FILE,
    NoReward,
    RewardFiles,
    Rewards,
)
from prorl_service.agents.harbor.workplace import ARE_REAL, LOGS, SHORT_S, Workplace
from prorl_service.errors import EvaluatorError
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.layers import Layer

TESTS, LOG = "/tests", "/logs/verifier/test-stdout.txt"
TIMED_OUT = "the verifier took more than"
MAX_KEPT_BYTES = 4 << 30
MAX_REWARD_BYTES = 64 << 10
MAX_LOG_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Work:
    """What an agent left at the end of a step, when all its processes had ended."""

    layer: Layer | None
    """All that it wrote, for a verifier that shares its sandbox; None if that was too much."""
    artifacts: Artifacts


@dataclass(frozen=True, slots=True)
class Verified:
    rewards: Rewards
    problem: str = ""
    """Reason why there is no reward of the verifier's own, so that it is 0."""
    remark: str = ""
    """Reason why the rewards are others than the first file says."""
    is_absent: bool = False
    """Whether the reward is the task's own for a verifier that fails without one."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Numbers of files that the guard left out, by roots that would declare them as work."""
    log: str = ""
    layer: Layer | None = None
    """All that the verifier wrote, if that was asked for."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Connections of the verifier's programs, by host; refused ones begin with an exclamation
    mark."""


async def verify(
    rollout: RolloutContext, data: HarborData, step: Step, work: Work, *, keep: bool = False
) -> Verified:
    """With `keep`, what the verifier wrote is returned, too.

    Raises `TaskError`, `SandboxError`, and `EvaluatorError` for a verifier that gives no reward for
    an untouched sandbox either.
    """
    if step.verifier.place is None and work.layer is None:
        return Verified({"reward": 0.0}, "the agent wrote more than fits into another sandbox")
    found = await _verified(rollout, data, step, work, keep=keep)
    if found.problem and not found.problem.startswith(TIMED_OUT):
        nothing = await _verified(rollout, data, step, None)
        if nothing.problem:
            raise EvaluatorError(
                f"the verifier gives no reward for an untouched sandbox either: {nothing.problem}",
                hint="run `prorl harbor check` on the task",
            )
    return found


async def _verified(
    rollout: RolloutContext,
    data: HarborData,
    step: Step,
    work: Work | None,
    *,
    keep: bool = False,
) -> Verified:
    """Runs the verifier once. Without `work`: as if the agent had done nothing."""
    verifier = step.verifier
    workplace = await Workplace.opened(rollout, verifier.place or data.place, user=verifier.user)
    try:
        refused: Mapping[str, int] = {}
        if work is not None and verifier.place is not None:
            await work.artifacts.put(workplace.sandbox)
        elif work is not None and work.layer is not None:
            refused = await _restored(workplace, data, step, work.layer)
        await workplace.connect(rollout, verifier.network)
        await workplace.prepare()
        if verifier.place is not None:
            await workplace.check_health(verifier.place.healthcheck)
        found = await _graded(workplace, data, step)
        layer = await workplace.sandbox.save_layer(max_bytes=MAX_KEPT_BYTES) if keep else None
    finally:
        await workplace.sandbox.stop()
    return replace(found, refused=refused, layer=layer, hosts=workplace.hosts_reached())


async def _graded(workplace: Workplace, data: HarborData, step: Step) -> Verified:
    named = await _put_tests(workplace, step)
    run = await _run(workplace, data, step)
    files = await _reward_files(workplace)
    absent = step.verifier.reward_if_absent
    try:
        rewards, remark = files.only(named).read()
    except NoReward as error:
        if absent is None or run.problem or not run.exit_code:
            return Verified({"reward": 0.0}, run.problem or str(error), log=run.log)
        remark = f"{error}, exit code {run.exit_code}: `reward_if_absent` counts"
        return Verified({"reward": absent}, remark=remark, is_absent=True, log=run.log)
    return Verified(rewards, remark=remark, log=run.log)


async def _restored(
    workplace: Workplace, data: HarborData, step: Step, layer: Layer
) -> dict[str, int]:
    surroundings = await Surroundings.of(workplace)
    try:
        return await workplace.sandbox.restore_layer(layer, surroundings.guard(data, step))
    except OSError as error:
        raise EvaluatorError(f"what the agent wrote cannot be restored: {error}") from error


async def _put_tests(workplace: Workplace, step: Step) -> list[str]:
    """Unpacks the tests. Returns the names of reward files that occur in them."""
    named: set[str] = set()
    for archive in step.verifier.tests:
        await workplace.unpack(archive, TESTS)
        content = await asyncio.to_thread(load_archive, archive)
        named |= {name for name in (JSON_FILE, TEXT_FILE) if name.encode() in content}
    await workplace.must(f"chmod +x {TESTS}/test.sh", "the task has no tests/test.sh")
    return sorted(named)


@dataclass(frozen=True, slots=True)
class _VerifierRun:
    log: str
    exit_code: int | None
    """Exit code, which alone says nothing; None for a verifier that was stopped."""
    problem: str


async def _run(workplace: Workplace, data: HarborData, step: Step) -> _VerifierRun:
    exports = _exports(step.verifier.environment)
    if data.guard:
        exports += await pin(workplace, isolated=data.isolated)
    command = f"{exports}cd {shlex.quote(workplace.workdir)}; {TESTS}/test.sh"
    quiet = f"( {command} ) > {LOG} 2>&1 < /dev/null"
    done = await workplace.bash(quiet, step.verifier.timeout_s)
    await workplace.sandbox.end_processes()
    problem = f"{TIMED_OUT} {step.verifier.timeout_s:g} s" if done.data.get("timed_out") else ""
    log = await _content(workplace, LOG, MAX_LOG_BYTES) or b""
    return _VerifierRun(log.decode(errors="replace"), done.data.get("exit_code"), problem)


def _exports(environment: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}; " for name, value in environment.items())


async def _reward_files(workplace: Workplace) -> RewardFiles:
    directory = LOGS[-1]
    if (await workplace.bash(ARE_REAL, SHORT_S)).data.get("exit_code"):
        return RewardFiles(None, None)
    return RewardFiles(
        await _content(workplace, f"{directory}/{JSON_FILE}", MAX_REWARD_BYTES),
        await _content(workplace, f"{directory}/{TEXT_FILE}", MAX_REWARD_BYTES),
    )


async def _content(workplace: Workplace, path: str, max_bytes: int) -> bytes | None:
    try:
        return await workplace.sandbox.download(path, max_bytes=max_bytes)
    except OSError:
        return None
