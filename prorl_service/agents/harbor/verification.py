"""The verdict on an agent's work: the task's verifier, run in a sandbox in which nothing else runs.

A verifier that shares the agent's sandbox gets a fresh one with what the agent wrote, behind a
guard. One with a sandbox of its own gets the artifacts only. Nothing that the agent's work does to
the verifier becomes an error of the service: it is a reward of 0.
"""

import asyncio
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harbor.artifacts import Artifacts
from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.rewards import (
    JSON_FILE,
    TEXT_FILE,
    NoReward,
    RewardFiles,
    Rewards,
)
from prorl_service.agents.harbor.workplace import LOGS, Workplace
from prorl_service.errors import EvaluatorError
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.layers import Guard, Layer

TESTS, LOG = "/tests", "/logs/verifier/test-stdout.txt"
TIMED_OUT = "the verifier took more than"
MAX_KEPT_BYTES = 4 << 30
MAX_REWARD_BYTES = 64 << 10
MAX_LOG_BYTES = 16 << 10
SHOWN_PATHS = 50
SYSTEM_TREES = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc/alternatives")
SYSTEM_PATH = "usr/local/sbin:usr/local/bin:usr/sbin:usr/bin:sbin:bin"
OURS = (".prorl", "proc", "sys", "dev", "run/prorl")


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
    refused: list[str] = field(default_factory=list)
    """Paths that the guard left out."""
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
        refused: list[str] = []
        if work is not None and verifier.place is not None:
            await work.artifacts.put(workplace.sandbox)
        elif work is not None and work.layer is not None:
            refused = await _restored(workplace, data, work.layer)
        await workplace.connect(rollout, verifier.network)
        await workplace.prepare()
        if verifier.place is not None:
            await workplace.check_health(verifier.place.healthcheck)
        found = await _graded(workplace, step)
        layer = await workplace.sandbox.save_layer(max_bytes=MAX_KEPT_BYTES) if keep else None
    finally:
        await workplace.sandbox.stop()
    return replace(
        found, refused=refused[:SHOWN_PATHS], layer=layer, hosts=workplace.hosts_reached()
    )


async def _graded(workplace: Workplace, step: Step) -> Verified:
    named = await _put_tests(workplace, step)
    run = await _run(workplace, step)
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


async def _restored(workplace: Workplace, data: HarborData, layer: Layer) -> list[str]:
    guard = guard_of(data, workplace.config)
    try:
        return await workplace.sandbox.restore_layer(layer, guard)
    except OSError as error:
        raise EvaluatorError(f"what the agent wrote cannot be restored: {error}") from error


def guard_of(data: HarborData, config: ImageConfig) -> Guard:
    """Returns the guard of an image: its programs, and those of the system."""
    never = (*OURS, TESTS.strip("/"), "solution", "logs/verifier")
    if not data.guard:
        return Guard(never=never)
    path = config.environment.get("PATH", "")
    search = dict.fromkeys(part.strip("/") for part in f"{path}:{SYSTEM_PATH}".split(":") if part)
    workdir = (data.place.workdir or config.workdir or "").strip("/")
    own = [directory for directory in search if not _is_below(directory, workdir)]
    trees = [*SYSTEM_TREES, *(directory.removesuffix("/bin") for directory in own)]
    return Guard(
        never=never,
        search=tuple(own),
        trees=tuple(dict.fromkeys(tree for tree in trees if "/" in tree or tree in SYSTEM_TREES)),
        allow=tuple(pattern.strip("/") for pattern in data.allow),
    )


def _is_below(path: str, root: str) -> bool:
    return bool(root) and (path == root or path.startswith(f"{root}/"))


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


async def _run(workplace: Workplace, step: Step) -> _VerifierRun:
    exports = _exports(step.verifier.environment)
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
    return RewardFiles(
        await _content(workplace, f"{directory}/{JSON_FILE}", MAX_REWARD_BYTES),
        await _content(workplace, f"{directory}/{TEXT_FILE}", MAX_REWARD_BYTES),
    )


async def _content(workplace: Workplace, path: str, max_bytes: int) -> bytes | None:
    try:
        return await workplace.sandbox.download(path, max_bytes=max_bytes)
    except OSError:
        return None
