"""Command lines and environments of a run's processes."""

from pathlib import Path

from prorl_service.ray.options import NodeOptions
from prorl_service.ray.plan import RunPlan

SECRET, KEY, TOKEN = "a-judge's-key", "an-engine's-key", "a-token-of-the-run"
PLAN = RunPlan(
    run="r",
    token=TOKEN,
    nodes=NodeOptions(state=Path("/state")),
    agents=("my:Agent",),
    backends=("http://e:1",),
    backend_key=KEY,
    serve=("--run-workers", "4"),
    environment={"PRORL_JUDGE_KEY": SECRET},
)


def test_secrets_are_in_environments_only() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    for secret in (SECRET, KEY, TOKEN):
        assert secret not in repr(PLAN) + repr(service) + repr(front)
        assert secret not in " ".join((*service.options, *front.options))
    assert service.environment == {"PRORL_JUDGE_KEY": SECRET, "PRORL_TOKEN": TOKEN}
    assert front.environment == {**service.environment, "PRORL_BACKEND_KEY": KEY}


def test_engines_are_the_fronts_and_agents_are_everyones() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    assert "--backend" in front.options
    assert "--backend" not in service.options
    assert "--run-workers" in service.options
    assert "--run-workers" not in front.options
    assert "my:Agent" in service.options
    assert "my:Agent" in front.options


def test_files_of_a_run_are_in_its_directory() -> None:
    service, front = PLAN.service("n", "10.0.0.1"), PLAN.front("10.0.0.1")
    assert "/state/r/services/n.json" in service.options
    assert "/state/r/services" in front.options
    assert service.log == Path("/state/r/logs/n.log")
    assert front.log == Path("/state/r/logs/front.log")


def test_a_front_that_listens_everywhere_has_its_nodes_address() -> None:
    assert PLAN.front("fd00::1").url(80) == "http://[fd00::1]:80"
    everywhere = RunPlan(run="r", token=TOKEN, host="0.0.0.0").front("10.0.0.1")
    assert (everywhere.host, everywhere.url(80)) == ("0.0.0.0", "http://10.0.0.1:80")
    loopback = RunPlan(run="r", token=TOKEN, host="127.0.0.1").front("10.0.0.1")
    assert (loopback.host, loopback.url(80)) == ("127.0.0.1", "http://127.0.0.1:80")
