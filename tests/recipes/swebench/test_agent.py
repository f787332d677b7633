"""The agent over HTTP: a scripted model whose tool calls really edit, run tests and submit."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_service.agents.swe import SweAgent
from prorl_service.client import AsyncRolloutClient
from prorl_service.errors import TaskError
from prorl_service.sandbox.archives import load_archive
from prorl_service.schemas import BackendSpec, FinishReason, Group, Limits, Rollout, RolloutState
from prorl_service.server.settings import Settings
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from recipes.common.imitation import tool_call
from recipes.swebench.rows import SweInstance
from recipes.swebench.scripted_oracle import SUBMIT, Step, edits
from tests.recipes.swebench.instances import instance
from tests.server.serving import finished, serving


def bash(command: str) -> Step:
    return "bash", {"command": command}


async def rolled_out(row: SweInstance, steps: Sequence[Step], model: Path) -> Rollout:
    """One rollout in which the model makes these calls, one a turn."""
    chat = ChatFormat.load(model)
    replies = [tool_call(name, arguments) for name, arguments in steps]
    script = [[*chat.encode(reply), chat.end_of_turn_id] for reply in replies]
    turns = iter(script)
    async with StubEngine(model, lambda _: next(turns), max_model_len=400_000) as engine:
        backends = (BackendSpec(url=engine.url),)
        settings = Settings(backends=backends, sandbox="bubblewrap", warm_sandboxes=0)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            group = Group(group_id="g", task=row.task(), limits=Limits(max_turns=len(steps)))
            [rollout] = await finished(client, group)
    return rollout


@pytest.mark.parametrize("instance_id", ["tomlkit-0.13.1", "mako-1.3.5"])
async def test_an_oracle_resolves_over_http(instance_id: str, tiny_model: Path) -> None:
    row = instance(instance_id)
    tests = bash(f"python -m pytest -q {row.file_of_tests} | tail -n 1")
    steps = [bash("git status --short && git log --oneline"), *edits(row), tests, SUBMIT]
    rollout = await rolled_out(row, steps, tiny_model)
    assert rollout.state is RolloutState.DONE, rollout.error
    assert rollout.trajectory is not None
    calls = [call for turn in rollout.trajectory.turns for call in turn.tool_calls]
    assert len(calls) == len(steps)
    assert not [call for call in calls if call.is_error]
    assert re.fullmatch(r"\w{7,} .*base", calls[0].output)
    assert "passed" in calls[-2].output
    assert rollout.reward == 1.0
    assert rollout.reward_components["fail_to_pass"] == 1.0
    assert rollout.trajectory.finish_reason is FinishReason.FINISHED


async def test_a_fix_counts_when_turns_run_out_and_git_is_in_disorder(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    disorder = "git() { echo no; }; git config diff.noprefix true; touch .git/index.lock; cd /"
    steps = [*edits(row), bash(disorder)]
    rollout = await rolled_out(row, steps, tiny_model)
    assert rollout.trajectory is not None
    assert rollout.trajectory.finish_reason is FinishReason.MAX_TURNS
    assert rollout.reward == 1.0


async def test_a_committed_fix_counts(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    commit = bash("git -c user.name=a -c user.email=a@localhost commit -qam fix && git clean -fdx")
    rollout = await rolled_out(row, [*edits(row), commit, SUBMIT], tiny_model)
    assert rollout.reward == 1.0


@pytest.mark.parametrize("steps", [[SUBMIT], [bash("rm -rf .git"), SUBMIT]])
async def test_nothing_done_is_nothing_run(steps: list[Step], tiny_model: Path) -> None:
    rollout = await rolled_out(instance("tomlkit-0.13.1"), steps, tiny_model)
    assert rollout.state is RolloutState.DONE, rollout.error
    assert rollout.reward == 0.0
    assert rollout.reward_components["patch_empty"] == 1.0
    assert rollout.reward_components["patch_applies"] == 0.0


async def test_the_answer_is_not_where_the_model_works(tiny_model: Path) -> None:
    row = instance("tomlkit-0.13.1")
    names = [id_.rpartition("::")[2] for id_ in row.FAIL_TO_PASS]
    everywhere = "/workspace /tmp /dev/shm"
    looks = [bash(f"grep -rIl {name} {everywhere} | wc -l") for name in names]
    refs = bash("[ ! -e .git/logs ] && git remote && git tag && git for-each-ref | wc -l")
    rollout = await rolled_out(row, [*looks, refs, SUBMIT], tiny_model)
    assert rollout.trajectory is not None
    outputs = [call.output for turn in rollout.trajectory.turns for call in turn.tool_calls]
    assert outputs[: len(looks)] == ["0"] * len(looks)
    assert outputs[len(looks)] == "1"
    prompt = "".join(message.content for message in SweAgent(row.task()).prompt().messages)
    assert not [name for name in names if name in prompt]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "sha256:../../etc/passwd", "sha256:12"])
def test_a_task_cannot_name_a_file_of_the_host(path: str) -> None:
    task = instance("tomlkit-0.13.1").task()
    environment = task.data["environment"]
    assert isinstance(environment, dict)
    environment["archive"] = path
    with pytest.raises(ValueError, match="archive"):
        SweAgent(task)


def test_archives_that_are_not_here_are_said_to_be_missing() -> None:
    with pytest.raises(TaskError, match="not in this service's cache"):
        load_archive(f"sha256:{'0' * 64}")
