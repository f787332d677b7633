"""The agent over HTTP: a scripted model whose tool calls really edit, run tests and submit."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.agents.swe.agent import SweAgent
from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.rewards.swe.grade import SweReport
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    Group,
    Limits,
    Replay,
    Rollout,
    RolloutState,
    Sampling,
    Stage,
    Start,
)
from prorl_service.testing import play
from recipes.swebench import oracle_policy
from recipes.swebench.oracle_policy import SUBMIT, Step, bash, edits, script
from recipes.swebench.report import of_rollout
from recipes.swebench.rows import SweInstance
from tests.parts import error_of, report_of, trajectory_of
from tests.recipes.swebench.instances import checkout, instance, instances
from tests.sandbox.images.debian import debian_image
from tests.server.application import Settings, finished, serving

pytestmark = pytest.mark.processes

FEW_TOKENS = Sampling(max_tokens_per_turn=64, seed=0)


async def rolled_out(
    row: SweInstance, steps: Sequence[Step], model: Path, eval_timeout_s: float = 300
) -> Rollout:
    """Returns a rollout in which the model makes these calls, one a turn."""
    async with oracle_policy.engine([row], model, {row.instance_id: [script(steps)]}) as engine:
        backends = (BackendSpec(url=engine.url),)
        settings = Settings(backends=backends, sandbox="bubblewrap", warm_sandboxes=0)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            limits = Limits(max_turns=len(steps), eval_timeout_s=eval_timeout_s)
            group = Group(group_id="g", task=row.task(), limits=limits)
            [rollout] = await finished(client, group)
    return rollout


def check_oracle(rollout: Rollout, row: SweInstance) -> None:
    assert rollout.state is RolloutState.DONE, rollout.error
    assert trajectory_of(rollout).finish_reason is FinishReason.FINISHED
    calls = [call for turn in trajectory_of(rollout).turns for call in turn.tool_calls]
    assert [(call.name, call.arguments) for call in calls] == oracle_policy.steps(row)
    assert not [call for call in calls if call.is_error]
    assert re.fullmatch(r"\w{7,} .*base", calls[0].output)
    tree = checkout(row.instance_id).path  # two releases lack the tests of the next
    has_tests = all((tree / file).exists() for file in row.environment.test_files)
    assert ("passed" in calls[-2].output) == has_tests, calls[-2].output
    report = SweReport.model_validate(report_of(rollout))
    assert report.resolved, report.summary
    assert rollout.reward == 1.0
    assert rollout.reward_components["fail_to_pass"] == 1.0


@pytest.mark.on_demand
async def test_an_oracle_resolves_all_instances_over_http() -> None:
    rows = list(instances().values())
    assert len(rows) == 19
    rollouts = await oracle_policy.roll_out(rows, sandbox="bubblewrap")
    for rollout, row in zip(rollouts, rows, strict=True):
        check_oracle(rollout, row)


async def test_a_branch_has_the_edits_of_the_turns_that_it_begins_with(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    steps = [*edits(row), SUBMIT]
    limits = Limits(max_turns=len(steps) + 1)
    scripts = {row.instance_id: [script(steps)]}
    async with oracle_policy.engine([row], tiny_model, scripts) as engine:
        backends = (BackendSpec(url=engine.url),)
        settings = Settings(backends=backends, sandbox="bubblewrap", warm_sandboxes=0)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            whole = Group(group_id="whole", task=row.task(), limits=limits)
            await finished(client, whole)
            start = Start(rollout_id="whole.0", turns=len(steps) - 1)
            branch = Group(group_id="branch", task=row.task(), limits=limits, start=start)
            [rollout] = await finished(client, branch)
    assert rollout.replay == Replay(rollout_id="whole.0", turns=len(steps) - 1)
    [turn] = [one for one in trajectory_of(rollout).turns if not one.is_replayed]
    assert [call.name for call in turn.tool_calls] == [SUBMIT[0]]
    assert rollout.reward == 1.0


async def test_an_oracle_resolves_in_containers() -> None:
    image = str(debian_image())
    ids = ("tomlkit-0.13.1", "mako-1.3.5", "sqlparse-0.5.0")
    rows = [instance(instance_id).model_copy(update={"image": image}) for instance_id in ids]
    rollouts = await oracle_policy.roll_out(rows, sandbox="apptainer")
    for rollout, row in zip(rollouts, rows, strict=True):
        check_oracle(rollout, row)


async def test_a_tiny_model_earns_an_honest_0(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model", max_position_embeddings=32_768)
    row = instance("texttable-1.6.4")
    limits = Limits(max_turns=3)
    group = Group(group_id="g", task=row.task(), n=2, limits=limits, sampling=FEW_TOKENS)
    with local.engine(tmp_path / "model", log=tmp_path / "engine.log") as engine:
        backends = (BackendSpec(url=engine.url),)
        settings = Settings(backends=backends, sandbox="bubblewrap", warm_sandboxes=0)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            rollouts = await finished(client, group)
    for rollout in rollouts:
        assert rollout.state is RolloutState.DONE, rollout.error
        assert rollout.reward == 0.0
        assert all(segment.loss_mask for segment in trajectory_of(rollout).segments)
        assert report_of(rollout)["outcome"] == "empty_patch"
        assert of_rollout(rollout).startswith("# texttable-1.6.4: empty_patch\n")


async def test_the_reference_patch_is_a_solution_that_the_agent_can_play() -> None:
    row = instance("texttable-1.6.4")
    replies = SweAgent(row.task()).solved_by(row.patch)
    played = await play(SweAgent, row.task(), replies, sandboxes="bubblewrap")
    assert (played.reward, played.unused_replies) == (1.0, 0)


async def test_a_fix_counts_when_turns_run_out_and_git_is_in_disorder(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    disorder = "git() { echo no; }; git config diff.noprefix true; touch .git/index.lock; cd /"
    steps = [*edits(row), bash(disorder)]
    rollout = await rolled_out(row, steps, tiny_model)
    assert trajectory_of(rollout).finish_reason is FinishReason.MAX_TURNS
    assert rollout.reward == 1.0


async def test_a_committed_fix_counts(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    commit = bash("git -c user.name=a -c user.email=a@localhost commit -qam fix && git clean -fdx")
    rollout = await rolled_out(row, [*edits(row), commit, SUBMIT], tiny_model)
    assert rollout.reward == 1.0


@pytest.mark.parametrize("steps", [[SUBMIT], [bash("rm -rf .git"), SUBMIT]])
async def test_an_empty_patch_earns_0_without_a_test_run(
    steps: list[Step], tiny_model: Path
) -> None:
    rollout = await rolled_out(instance("tomlkit-0.13.1"), steps, tiny_model)
    assert rollout.state is RolloutState.DONE, rollout.error
    assert rollout.reward == 0.0
    assert rollout.reward_components["patch_empty"] == 1.0
    assert rollout.reward_components["patch_applies"] == 0.0


async def test_the_eval_timeout_must_exceed_the_test_timeout(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    timeout_s = row.environment.test_timeout_s
    rollout = await rolled_out(row, [SUBMIT], tiny_model, eval_timeout_s=timeout_s)
    assert (error_of(rollout).blame, error_of(rollout).stage) == (Blame.TASK, Stage.INIT)
    assert "eval_timeout_s" in error_of(rollout).hint


async def test_the_answer_is_absent_from_the_models_sandbox(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    names = [id_.rpartition("::")[2] for id_ in row.FAIL_TO_PASS]
    everywhere = "/workspace /tmp /dev/shm"
    looks = [bash(f"grep -rIl {name} {everywhere} | wc -l") for name in names]
    refs = bash("[ ! -e .git/logs ] && git remote && git tag && git for-each-ref | wc -l")
    rollout = await rolled_out(row, [*looks, refs, SUBMIT], tiny_model)
    outputs = [call.output for turn in trajectory_of(rollout).turns for call in turn.tool_calls]
    assert outputs[: len(looks)] == ["0"] * len(looks)
    assert outputs[len(looks)] == "1"
    prompt = "".join(message.content for message in SweAgent(row.task()).prompt().messages)
    assert not [name for name in names if name in prompt]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "sha256:../../etc/passwd", "sha256:12"])
def test_a_task_cannot_name_a_file_on_the_host(path: str) -> None:
    task = instance("tomlkit-0.13.1").task()
    environment = task.data["environment"]
    assert isinstance(environment, dict)
    environment["archive"] = path
    with pytest.raises(ValueError, match="archive"):
        SweAgent(task)
