"""Rollouts of Harbor tasks: verdicts, what the verifier sees, and what it does not."""

from pathlib import Path

import pytest

from prorl_service.agents.harbor.data import Artifact, HarborData, Place, Step, Verifier
from prorl_service.agents.harbor.guarding import Surroundings
from prorl_service.agents.harbor.workplace import Workplace
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.schemas import Blame, FinishReason
from prorl_service.testing import play
from prorl_service.testing.playing import Played
from prorl_service.testing.replies import call
from tests.agents.harbor.directories import DONE, LIMITS, SOLVE, directory, played
from tests.parts import error_of, report_of
from tests.sandbox.sandboxes import new_provider, started

pytestmark = pytest.mark.processes


async def test_a_solved_task_gets_its_reward_and_an_untouched_one_gets_none(
    tmp_path: Path,
) -> None:
    ended = await played(directory(tmp_path), SOLVE)
    assert ended.reward == 1.0
    assert ended.rollout.reward_components["verifier_broken"] == 0.0
    assert (await played(directory(tmp_path))).reward == 0.0


async def test_several_rewards_are_components(tmp_path: Path) -> None:
    test = """echo '{"reward": 0.5, "style": 0.25}' > /logs/verifier/reward.json\n"""
    ended = await played(directory(tmp_path, test=test))
    assert ended.reward == 0.5
    assert ended.rollout.reward_components["style"] == 0.25


async def test_the_verifier_sees_no_process_of_the_agent(tmp_path: Path) -> None:
    test = """
        sleep 1
        [ -e /app/beat ] && a=$(cat /app/beat) && sleep 1 && [ "$a" = "$(cat /app/beat)" ]
        echo $((1 - $?)) > /logs/verifier/reward.txt
    """
    daemon = (
        "(setsid sh -c 'while :; do date +%s%N > /app/beat; sleep 0.1; done' >/dev/null 2>&1 &)"
    )
    ended = await played(directory(tmp_path, test=test), call("bash", command=daemon + "; sleep 1"))
    assert ended.reward == 1.0


@pytest.mark.parametrize(
    "cheat",
    [
        "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt;"
        " echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
        "rm -rf /logs/verifier; ln -s /tmp /logs/verifier; echo 1 > /tmp/reward.txt",
        "for p in cat bash sh; do rm -f /usr/bin/$p; printf '#!/bin/sh\\necho 42' > /usr/bin/$p;"
        " chmod +x /usr/bin/$p; done",
        "mkdir -p /usr/local/bin; printf '#!/usr/bin/env python3\\nprint(42)' > /usr/local/bin/cat;"
        " chmod +x /usr/local/bin/cat",
        "echo 'echo() { builtin echo 1; }' > ~/.bashrc; export BASH_ENV=~/.bashrc",
    ],
)
async def test_cheats_get_nothing(tmp_path: Path, cheat: str) -> None:
    assert (await played(directory(tmp_path), call("bash", command=cheat))).reward == 0.0


OUTSIDE = """
[ "$(answer)" = 42 ] && [ "$(cat ~/.config/answer)" = 42 ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""
"""A verifier of files that are not below the working directory."""
WRITES_OUTSIDE = """\
printf '#!/bin/sh\\necho 42\\n' > /usr/local/bin/answer && chmod +x /usr/local/bin/answer
mkdir -p ~/.config && echo 42 > ~/.config/answer
"""


async def test_work_elsewhere_counts_only_if_it_is_declared(tmp_path: Path) -> None:
    task = directory(tmp_path, test=OUTSIDE)
    acted = call("bash", command=f"mkdir -p /usr/local/bin; {WRITES_OUTSIDE}")
    ended = await played(task, acted)
    assert ended.reward == 0.0
    assert ended.rollout.reward_components["guard_refused"] == 2
    [step] = steps_of(ended)
    assert step["refused"] == ["root/.config", "usr/local/bin/answer"]
    assert "2 files were left out" in str(step["left_out"])
    assert "prorl harbor check" in str(step["left_out"])
    task.toml.verifier.work = ["/root/.config", "/usr/local/bin/answer"]
    ended = await played(task, acted)
    assert ended.reward == 1.0
    assert steps_of(ended)[0]["left_out"] == ""


async def test_programs_of_the_image_below_the_working_directory_are_protected() -> None:
    script = """
        mkdir -p '/app/a b/.venv/bin' /app/web/node_modules /app/mine/deep/er/.venv /app/bin
        touch '/app/a b/.venv/pyvenv.cfg' /app/mine/deep/er/.venv/pyvenv.cfg
        PATH=/app/bin:/app/tool/bin:$PATH
    """
    async with new_provider("apptainer") as provider, started(provider) as sandbox:
        workplace = Workplace(sandbox, Place(workdir="/app"), ImageConfig())
        await workplace.bash(script, 20)
        surroundings = await Surroundings.of(workplace)
    step = Step(verifier=Verifier(), artifacts=[Artifact(source="out"), Artifact(source="/srv/x")])
    data = HarborData(steps=[step], work=["/usr/bin/mine"], protected=["root/x"], allow=["/a*"])
    guard = surroundings.guard(data, step)
    assert guard.work == ("app/", "logs/artifacts/", "app/out", "srv/x", "usr/bin/mine")
    own = {"root/.", "app/__init__.py", "app/a b/.venv", "app/web/node_modules", "app/bin"}
    assert {*guard.protected} >= own | {"app/tool", "root/x"}
    assert not any("deep" in one for one in guard.protected)
    assert guard.allow == ("a*",)


async def test_the_root_directory_is_no_work() -> None:
    step = Step(verifier=Verifier())
    guard = Surroundings("/", "/root", (), ()).guard(HarborData(steps=[step]), step)
    assert guard.work == ("logs/artifacts/",)


async def test_a_reward_file_that_the_tests_do_not_name_does_not_count(tmp_path: Path) -> None:
    test = "bash ./work.sh; echo 0 > /logs/verifier/reward.txt\n"
    name = "reward.json"
    work = f'echo \'echo "{{\\"reward\\": 1}}" > /logs/verifier/{name}\' > work.sh'
    assert (await played(directory(tmp_path, test=test), call("bash", command=work))).reward == 0.0


async def test_a_verifier_that_the_agent_breaks_is_a_reward_of_zero(tmp_path: Path) -> None:
    test = "set -e\n[ ! -e broken ]\necho 1 > /logs/verifier/reward.txt\n"
    ended = await played(directory(tmp_path, test=test), call("bash", command="touch broken"))
    assert ended.reward == 0.0
    assert ended.rollout.reward_components["verifier_broken"] == 1.0


async def test_a_verifier_without_a_reward_is_not_the_policys_fault(tmp_path: Path) -> None:
    ended = await played(directory(tmp_path, test="echo nan > /logs/verifier/reward.txt"))
    assert error_of(ended.rollout).blame is Blame.EVALUATOR
    assert "no finite number" in error_of(ended.rollout).message


STRICT = "#!/bin/bash\nset -e\n[ -e answer.txt ]\necho 1 > /logs/verifier/reward.txt\n"
"""A verifier that gives a reward only for success."""


async def test_a_task_may_say_what_a_missing_reward_is(tmp_path: Path) -> None:
    task = directory(tmp_path, test=STRICT)
    task.toml.verifier.reward_if_absent = 0.0
    ended = await played(task)
    assert ended.reward == 0.0
    assert ended.rollout.reward_components["verifier_broken"] == 0.0
    assert steps_of(ended)[0]["absent"] is True
    assert "exit code 1" in str(steps_of(ended)[0]["remark"])
    assert (await played(task, SOLVE)).reward == 1.0


async def test_a_missing_reward_without_a_failure_is_the_evaluators(tmp_path: Path) -> None:
    task = directory(tmp_path, test="true")
    task.toml.verifier.reward_if_absent = 0.0
    ended = await played(task)
    assert error_of(ended.rollout).blame is Blame.EVALUATOR
    assert "wrote neither reward.json nor reward.txt" in error_of(ended.rollout).message


def steps_of(ended: Played) -> list[dict[str, object]]:
    steps = report_of(ended.rollout)["steps"]
    assert isinstance(steps, list)
    return [dict(one) for one in steps if isinstance(one, dict)]


async def test_a_verifier_that_hangs_is_a_reward_of_zero(tmp_path: Path) -> None:
    toml = "[metadata]\nlevel = 3\n"
    task = directory(
        tmp_path, test="bash ./work.sh\necho 1 > /logs/verifier/reward.txt\n", toml=toml
    )
    task.toml.verifier.timeout_sec = 2.0
    task.toml.verifier.model_fields_set.add("timeout_sec")
    ended = await played(task, call("bash", command="echo 'sleep 1000' > work.sh"))
    assert ended.reward == 0.0
    assert report_of(ended.rollout)["about"] == {"level": 3}


async def test_variables_and_directory_are_the_tasks(tmp_path: Path) -> None:
    test = '[ "$PWD $A $B" = "/app 1 two words" ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
    toml = 'env = {A = "1", B = "${NOT_SET:-two words}"}\n'
    ended = await played(
        directory(tmp_path, test=test, toml=toml), call("bash", command="echo $PWD $B")
    )
    assert ended.outputs == ["/app two words"]
    assert ended.reward == 1.0


async def test_a_health_check_that_fails_is_the_tasks_fault(tmp_path: Path) -> None:
    toml = '[environment.healthcheck]\ncommand = "echo is ill; false"\ninterval_sec = 0.1\n'
    ended = await played(directory(tmp_path, toml=toml))
    assert error_of(ended.rollout).blame is Blame.TASK
    assert "is ill" in error_of(ended.rollout).message


async def test_a_service_that_becomes_healthy_is_waited_for(tmp_path: Path) -> None:
    toml = """
        [environment.healthcheck]
        command = "[ -e /tmp/once ] || { touch /tmp/once; false; }"
        interval_sec = 0.1
    """
    assert (await played(directory(tmp_path, toml=toml), SOLVE)).reward == 1.0


async def test_a_verifier_of_its_own_gets_the_artifacts_only(tmp_path: Path) -> None:
    toml = 'artifacts = ["answer.txt"]\n'
    separate = """
        [ "$(cat /app/answer.txt)" = 42 ] && [ ! -e /app/other ] &&
            [ "$(cat /logs/artifacts/a)" = a ]
        echo $((1 - $?)) > /logs/verifier/reward.txt
    """
    task = directory(tmp_path, test=separate, toml="")
    text = (tmp_path / "task.toml").read_text()
    mode = text.replace("[verifier]", '[verifier]\nenvironment_mode = "separate"')
    (tmp_path / "task.toml").write_text(toml + mode)
    task = type(task).read(tmp_path)
    work = "echo 42 > answer.txt; touch other; echo a > /logs/artifacts/a"
    assert (await played(task, call("bash", command=work))).reward == 1.0


STEPS = """
[[steps]]
name = "first"
min_reward = {least}
[[steps]]
name = "second"
"""
COUNT = """\
if [ "$(wc -l < log.txt)" = {lines} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def steps(path: Path, least: float = 0.0, strategy: str = "mean") -> dict[str, str]:
    return {
        "steps/first/instruction.md": "Write a line to log.txt.",
        "steps/first/tests/test.sh": COUNT.format(lines=1),
        "steps/second/instruction.md": "Write another.",
        "steps/second/workdir/setup.sh": "touch set-up",
        "steps/second/tests/test.sh": "[ -e set-up ] || exit 1\n" + COUNT.format(lines=2),
    }


LINE = call("bash", command="echo line >> log.txt; ls /tests 2>/dev/null | wc -l")


async def test_steps_are_conversations_in_one_sandbox(tmp_path: Path) -> None:
    task = directory(tmp_path, toml=STEPS.format(least=1.0), files=steps(tmp_path))
    ended = await played(task, LINE, DONE, LINE)
    assert ended.outputs == ["0", "0"]
    assert ended.reward == 1.0
    assert [turn.segment for turn in ended.turns] == [0, 0, 1, 1]
    assert "Write another." in ended.prompts[2]
    assert "Write a line" not in ended.prompts[2]


async def test_a_step_below_its_least_reward_ends_the_task(tmp_path: Path) -> None:
    task = directory(tmp_path, toml=STEPS.format(least=1.0), files=steps(tmp_path))
    ended = await played(task)
    assert ended.reward == 0.0
    assert len(ended.turns) == 1
    assert ended.finish_reason is FinishReason.FINISHED


async def test_rewards_of_steps_are_averaged(tmp_path: Path) -> None:
    task = directory(tmp_path, toml=STEPS.format(least=0.0), files=steps(tmp_path))
    ended = await played(task, LINE, DONE)
    assert ended.reward == 0.5
    assert ended.rollout.reward_components["step_first"] == 1.0


async def test_a_budget_of_eval_that_is_too_short_is_said(tmp_path: Path) -> None:
    task = directory(tmp_path)
    task.toml.verifier.timeout_sec = 500.0
    ended = await played(task)
    assert error_of(ended.rollout).hint == "raise eval_timeout_s"


async def test_the_agent_runs_as_its_user(tmp_path: Path) -> None:
    toml = '[agent]\nuser = "games"\n'
    same = """[ "$(cat who answer)" = $'root\\ngames' ]"""
    test = f"id -un > who; {same}; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = directory(tmp_path, toml=toml, test=test)
    assert (await played(task, call("bash", command="id -un > answer"))).reward == 1.0


async def test_a_harness_works_on_the_task_and_the_tasks_verifier_grades_it(
    tmp_path: Path,
) -> None:
    task = with_harness(directory(tmp_path).task(), "pi")
    ended = await play(AgentRegistry()["harness"], task, [SOLVE, DONE], limits=LIMITS)
    assert ended.reward == 1.0
    assert ended.rollout.reward_components["harness_calls"] == 2
    idle = await play(AgentRegistry()["harness"], task, [DONE], limits=LIMITS)
    assert idle.reward == 0.0
