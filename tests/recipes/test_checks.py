"""Checks of a run's settings: errors are reported before any work starts, with what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service.client import ServiceCallError
from prorl_service.local import free_port
from recipes.common import checks
from recipes.common.data import rows as data_rows
from recipes.common.settings import BadSettings, Evaluation, Training
from recipes.common.training import launch, plan, serving
from recipes.math_code import tasks as math_tasks
from recipes.swebench import tasks
from recipes.swebench.rows import write_rows
from tests.recipes.composed_settings import settings
from tests.recipes.swebench.instances import instance
from tests.verl.training import ROOT


def training(*overrides: str) -> Training:
    return settings(Training, "swebench_train", *overrides)


def qwen(*overrides: str) -> Training:
    return training("model=qwen3_8b", "trainer=trl", *overrides)


def tiny(*overrides: str) -> Training:
    return training("model=tiny", "trainer=trl", *overrides)


@pytest.mark.processes
def test_a_command_fails_with_one_line_and_a_hint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipes.swebench.train", "model=qwen3_8b"]
    command += [f"data.rows={tmp_path}/none.jsonl", f"output={tmp_path}/output"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    problem, hint = done.stderr.splitlines()
    assert problem == f"prorl: data=skyrl_293: {tmp_path}/none.jsonl does not exist"
    assert hint.startswith("  python -m recipes.swebench.prepare --dataset skyrl_293")


def test_broken_rows_are_refused_with_a_line_each(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"instance_id": "a"}\n\nno JSON\n' + "{}\n" * data_rows.SHOWN)
    with pytest.raises(BadSettings) as caught:
        tasks.rows_of(tiny(f"data.rows={rows}"))
    first, *bad = caught.value.message.splitlines()
    assert first == f"{rows} has rows that cannot be used"
    assert bad[0].startswith("  line 1: repo: Field required; ")
    assert bad[1].startswith("  line 3: Invalid JSON")
    assert bad[-1] == "  and 2 more"
    assert len(bad) == data_rows.SHOWN + 1
    assert "https:" not in caught.value.message
    assert "again" not in caught.value.hint


def test_rows_as_the_page_shows_them_are_problems_of_each_task(tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    lines = page.partition("### Rows of your own")[2].partition("```json\n")[2].partition("```")[0]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(lines)
    for task in ("math", "code", "stem", "reasoning_gym"):
        given = [f"task={task}", "model=tiny", "trainer=trl", f"data.rows={rows}"]
        chosen = settings(Training, "math_code_train", *given, f"data.only=[{task[0]}1]")
        [made] = math_tasks.of(chosen)
        assert made.agent == task
    rows.write_text('{"problem_id": "m1"}\n')
    with pytest.raises(BadSettings, match="line 1: kind: Field required"):
        math_tasks.of(chosen)


def test_options_that_the_service_does_not_take_are_refused() -> None:
    serving.check_options(tiny("service.options=[--run-workers,64,--warm-sandboxes,0]"))
    with pytest.raises(BadSettings, match="Did you mean --run-workers") as caught:
        serving.check_options(tiny("service.options=[--run-workrs,64]"))
    assert "serve --help" in caught.value.hint
    with pytest.raises(BadSettings, match="should be a valid integer") as caught:
        serving.check_options(tiny("service.options=[--run-workers,x]"))
    assert "https:" not in caught.value.message


def test_machines_of_a_job_are_checked_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = qwen("cluster=slurm", "cluster.gpus_per_node=1000")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    checks.check_gpus(chosen)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    with pytest.raises(BadSettings, match="needs 1000 GPUs on this machine"):
        checks.check_gpus(chosen)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(BadSettings, match=r"cluster\.nodes=4, and the job has 2"):
        checks.check_nodes(chosen)
    with pytest.raises(BadSettings, match=r"tensor_parallel=2 do not fill"):
        checks.check_nodes(training("model=qwen3_8b", "trainer=verl", "cluster.gpus_per_node=5"))
    checks.check_gpus(tiny())


def test_a_plan_shows_a_service_that_runs_and_what_it_ignores() -> None:
    given = ("service.url=http://host:1", "service.options=[--run-workers,64]")
    shown = plan.text(tiny(*given), [])
    assert "http://host:1, which runs already; service.options are ignored" in shown


def test_missing_instances_are_named(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, [instance("mako-1.3.5")])
    chosen = tiny(f"data.rows={rows}")
    with pytest.raises(BadSettings, match=r"no row mistune-3.1.0, python-dotenv-1.1.0"):
        data_rows.chosen(chosen.data, tasks.rows_of(chosen))


def test_a_model_that_cannot_be_fetched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadSettings, match=r"Qwen/Qwen3-8B cannot be fetched from the hub"):
        checks.model_directory(qwen().model)


def test_a_missing_trainer_is_refused_with_how_to_install_it() -> None:
    other = training("model=tiny", "trainer=verl")
    with pytest.raises(BadSettings, match="trainer=verl is not installed") as caught:
        checks.check_trainer(other)
    assert "scripts/setup-verl" in caught.value.hint


def test_a_model_without_an_engine_is_refused_with_a_command() -> None:
    chosen = settings(Evaluation, "swebench_evaluate", "model=qwen3_8b")
    with pytest.raises(BadSettings, match="needs an engine") as caught:
        checks.check_engines(chosen, brought=False)
    assert "vllm serve Qwen/Qwen3-8B" in caught.value.hint
    checks.check_engines(chosen, brought=True)


def test_a_missing_sandbox_is_refused_unless_the_service_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadSettings, match="sandbox=bubblewrap") as caught:
        checks.check_sandbox(tiny())
    assert "prorl install" in caught.value.hint
    checks.check_sandbox(tiny("service.url=http://localhost:1"))


def test_images_need_containers() -> None:
    row = instance("mako-1.3.5").model_copy(update={"image": "python:3.12"})
    with pytest.raises(BadSettings, match="bubblewrap runs none"):
        checks.check_images(tiny(), [row.task()])


def test_a_service_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FIRST_CONTACT_S", 0)
    chosen = tiny(f"service.url=http://127.0.0.1:{free_port()}")
    with pytest.raises(ServiceCallError, match="check that the service runs there"):
        checks.check_service(chosen, brought=False)


def test_prompts_that_are_too_long_are_left_out_and_the_others_fill_a_step(
    tiny_model: Path,
) -> None:
    tasks = [instance("mako-1.3.5").task()] * 2
    assert checks.fitting(tiny("agent.max_prompt_tokens=4000"), tasks, tiny_model) == tasks
    with pytest.raises(BadSettings, match="0 of 2 tasks have a prompt"):
        checks.fitting(tiny("agent.max_prompt_tokens=100"), tasks, tiny_model)
    given = ("agent.max_prompt_tokens=4000", "algorithm.prompts_per_step=4")
    with pytest.raises(BadSettings, match=r"fewer than algorithm\.prompts_per_step=4"):
        checks.fitting(tiny(*given), tasks, tiny_model)


def test_an_output_with_checkpoints_is_refused_with_resume_never(tmp_path: Path) -> None:
    (tmp_path / "checkpoints/checkpoint-1").mkdir(parents=True)
    with pytest.raises(BadSettings, match="resume=never"):
        launch.check_output(tiny(f"output={tmp_path}", "resume=never"))
    launch.check_output(tiny(f"output={tmp_path}"))


def test_several_processes_must_share_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadSettings, match="a service of its own"):
        launch.check_processes(tiny())
    launch.check_processes(tiny("service.url=http://localhost:1"))
