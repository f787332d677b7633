"""Choice of the plug-in by a user: Hydra finds it wherever it is installed, and mistakes are
reported before Ray starts."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from prorl_service import local, neighbours
from prorl_service.agents.registry import AgentRegistry
from prorl_service.schemas import Limits
from prorl_service.schemas.sampling import SamplerSpec
from prorl_verl import contract
from prorl_verl.settings import BY_MODE
from prorl_verl.start import CheckBeforeStart
from tests.faults.processes import stub_engine
from tests.verl.test_settings import CONFIG
from tests.verl.training import ROOT

pytestmark = pytest.mark.timeout(1800)

OPTIONS = ["--sandbox", "process"]
MANAGER = "prorl_verl.manager.ProRLAgentLoopManager"
VERL_CONFIG = Path(str(distribution("verl").locate_file("verl/trainer/config")))

COMPOSE = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from packaging.specifiers import SpecifierSet
directory, choices = sys.argv[1], json.loads(sys.argv[2])
with initialize_config_dir(directory, version_base=None):
    for name, overrides in choices:
        config = compose(name, overrides, return_hydra_config=True)
        print(json.dumps({
            "prorl": OmegaConf.to_container(config.get("prorl", OmegaConf.create({}))),
            "manager": config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class"),
            "sampler": config.trainer.v1.sampler.custom_sampler.name,
            "callbacks": list(config.hydra.callbacks or ()),
            "n": config.actor_rollout_ref.rollout.n,
        }))
"""
NAME = "actor_rollout_ref.rollout.name=vllm"
MODEL = "actor_rollout_ref.model.path=m"
CHOICES = [
    ("prorl_ppo_trainer", ["rollout=prorl", "prorl.limits.max_turns=7", NAME, MODEL]),
    ("prorl_ppo_trainer", ["rollout=verl", NAME, MODEL]),
    ("ppo_trainer", ["+rollout=prorl", "actor_rollout_ref.rollout.n=3", NAME, MODEL]),
    ("ppo_trainer", ["+rollout=prorl", "algorithm.filter_groups.enable=true", NAME, MODEL]),
]


def composed(python: str, path: str) -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    command = [python, "-c", COMPOSE, str(VERL_CONFIG), json.dumps(CHOICES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def from_wheel(directory: Path) -> list[dict[str, Any]]:
    """Returns the output in an environment that has the wheel and little else."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(directory), str(ROOT)], check=True)
    (wheel,) = directory.glob("*.whl")
    venv.create(directory / "venv", with_pip=False)
    python = str(directory / "venv/bin/python")
    install = [*pip, "--python", python, "install"]
    subprocess.run([*install, "hydra-core", "httpx", "pydantic"], check=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    return composed(python, "")


@pytest.mark.parametrize(
    "compose",
    [lambda directory: composed(sys.executable, ""), from_wheel],
    ids=["editable", "wheel"],
)
def test_hydra_finds_the_plug_in(
    compose: Callable[[Path], list[dict[str, Any]]], tmp_path: Path
) -> None:
    ours, stock, added, filtered = compose(tmp_path)
    assert ours["manager"] == added["manager"] == MANAGER
    assert ours["prorl"]["limits"] == {**Limits().model_dump(), "max_turns": 7}
    shown = SamplerSpec.model_validate(
        {key: one for key, one in ours["prorl"]["dynamic_sampling"].items() if key not in BY_MODE}
    )
    assert shown == SamplerSpec()
    assert ours["callbacks"] == ["prorl"]
    assert (stock["manager"], stock["prorl"], stock["callbacks"]) == (None, {}, [])
    assert (added["n"], added["sampler"]) == (3, None)
    assert filtered["sampler"] == "DynamicSampler"


STOCK = ["verl.trainer.main_ppo", "--config-name", "prorl_ppo_trainer"]


def command(*arguments: str, start: Sequence[str] = STOCK) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *start, *arguments, "rollout=prorl", NAME, MODEL],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/verl'}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "start", [STOCK, ["prorl_verl"]], ids=["verl.trainer.main_ppo", "prorl_verl"]
)
def test_the_configuration_can_be_shown(start: list[str]) -> None:
    done = command("--cfg", "job", start=start)
    assert done.returncode == 0, done.stderr
    assert f"agent_loop_manager_class: {MANAGER}" in done.stdout


def test_a_wrong_address_ends_the_command_before_ray_starts() -> None:
    url = f"http://127.0.0.1:{local.free_port()}"
    done = command(f"prorl.url={url}")
    assert done.returncode == 1
    assert f"prorl: GET {url}/v1/status" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ray init" not in done.stdout


def test_an_option_that_does_not_exist_ends_the_command_with_the_nearest() -> None:
    done = command("prorl.agnt=math")
    assert done.returncode == 1
    *_, said = done.stderr.splitlines()
    assert said == "prorl: there is no option prorl.agnt; did you mean agent?"
    assert "+" not in said
    assert "Traceback" not in done.stderr


def configuration(url: str, **prorl: Any) -> Any:
    """Returns as much of a configuration as `on_job_start` reads."""
    own = {**CONFIG["prorl"], "url": url, **prorl}
    return OmegaConf.create({**CONFIG, "prorl": own, "hydra": {"job": {"num": "???"}}})


def complaint(config: Any, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        CheckBeforeStart().on_job_start(config)
    assert end.value.code == 1
    return capsys.readouterr().err


def test_each_mistake_is_reported_in_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("right" * 8)
    (tmp_path / "wrong").write_text("wrong" * 8)
    options = [*OPTIONS, "--token-file", str(tmp_path / "token")]
    with local.service([], log=tmp_path / "log", options=options) as service:
        token = {"token_file": str(tmp_path / "token")}
        fine = configuration(service.url, **token)
        fine.data.truncation = "left"
        CheckBeforeStart().on_job_start(fine)
        assert "prorl: warning: data.truncation=left has no effect" in capsys.readouterr().err
        wrong = configuration(service.url, token_file=str(tmp_path / "wrong"))
        refused = complaint(wrong, capsys)
        assert "Unauthorized" in refused
        assert len(set(map(str.strip, refused.splitlines()))) == len(refused.splitlines())
        missing = configuration(service.url, token_file=str(tmp_path / "none"))
        assert "No such file" in complaint(missing, capsys)
        agent = configuration(service.url, **token, agent="chess")
        known = ", ".join(AgentRegistry().names)
        refused = complaint(agent, capsys)
        assert f"prorl.agent=chess is unknown; the service has: {known}\n" in refused
        misspelt = configuration(service.url, **token, limits={"max_turn": 3})
        refused = complaint(misspelt, capsys)
        assert (
            refused == "prorl: there is no option prorl.limits.max_turn; did you mean max_turns?\n"
        )
    monkeypatch.setattr(neighbours, "version", lambda package: "0.10.0")
    refused = complaint(configuration("http://x"), capsys)
    assert "supports verl<0.10,>=0.9.1, but verl 0.10.0" in refused


def test_a_service_with_other_engines_is_refused(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        stub_engine(tiny_model) as engine,
        local.service([engine.url], log=tmp_path / "log", options=OPTIONS) as service,
    ):
        said = complaint(configuration(service.url), capsys)
    assert f"has other engines already: {engine.url}" in said


def test_parts_that_verl_moved_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    contract.check()
    server = "verl.workers.rollout.llm_server:LLMServerClient"
    known = neighbours.neighbours()["verl"]
    monkeypatch.setitem(known.calls, f"{server}._acquire_server", ["request_id", "color"])
    monkeypatch.setitem(known.calls, f"{server}.moved", [])
    monkeypatch.setitem(known.fields, "verl.nothing:Here", ["x"])
    with pytest.raises(contract.IncompatibleVeRL) as refused:
        contract.check()
    for name in (f"{server}._acquire_server(color=)", f"{server}.moved", "verl.nothing:Here"):
        assert name in refused.value.message


def test_a_library_that_verl_needs_and_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needy.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(neighbours.neighbours()["verl"].calls, "needy:Client", [])
    with pytest.raises(contract.IncompatibleVeRL) as refused:
        contract.check()
    assert refused.value.message == "needy needs no_such_library, which is not installed"
    assert refused.value.hint == "pip install no_such_library"
