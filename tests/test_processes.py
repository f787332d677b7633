"""The service and the engine as a user runs them: processes of their own, killed and restarted."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from prorl_service import __version__, local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import (
    BackendState,
    Group,
    Limits,
    Rollout,
    RolloutState,
    Sampling,
)
from prorl_service.schemas.sampling import SamplerSpec
from tests import builders
from tests.programs import prorl
from tests.trainers import trainer

pytestmark = pytest.mark.processes

MIB = 1024 * 1024


def group(group_id: str, n: int, max_tokens: int) -> Group:
    task = builders.task("sum", "What is 17 + 25?", data={"answer": "42"})
    limits = Limits(max_turns=1, max_response_tokens=max_tokens)
    return Group(group_id=group_id, task=task, n=n, limits=limits, sampling=Sampling(seed=0))


@pytest.fixture
def engine(tiny_model: Path, tmp_path: Path) -> Iterator[local.LocalProcess]:
    with local.engine(tiny_model, log=tmp_path / "engine.log") as process:
        yield process


@pytest.fixture
def service(engine: local.LocalProcess, tmp_path: Path) -> Iterator[local.LocalProcess]:
    options = ["--wait-for-backend-s", "40"]  # 20 were too few on a busy machine
    with local.service([engine.url], log=tmp_path / "service.log", options=options) as process:
        yield process


@pytest.fixture
def client(service: local.LocalProcess) -> Iterator[RolloutClient]:
    with trainer(service.url) as connected:
        yield connected


def finished(client: RolloutClient, submitted: Group) -> list[Rollout]:
    client.submit([submitted])
    return client.wait(submitted.rollout_ids(), timeout_s=120)


def test_the_service_at_rest_is_small_and_has_no_torch(service: local.LocalProcess) -> None:
    process = psutil.Process(service.pid)
    assert process.memory_info().rss < 112 * MIB  # torch alone would add 200
    mapped = {Path(region.path).name for region in process.memory_maps()}
    assert not any("torch" in name for name in mapped)


def test_importing_the_server_imports_no_torch() -> None:
    code = (
        "import sys, prorl_service.cli.serve;"
        "sys.exit(' '.join({'torch', 'transformers', 'trl'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_random_model_plays_rollouts_to_an_honest_zero(client: RolloutClient) -> None:
    rollouts = finished(client, group("random", n=16, max_tokens=64))
    assert {rollout.state for rollout in rollouts} == {RolloutState.DONE}
    assert {rollout.reward for rollout in rollouts} == {0.0}


def test_the_engine_is_killed_and_comes_back(
    client: RolloutClient,
    engine: local.LocalProcess,
    service: local.LocalProcess,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    weights = (tiny_model / "model.safetensors").read_bytes()
    client.stream_weights([weights], after=2)
    client.submit([group("killed", n=32, max_tokens=4000)])
    while not any(backend.in_flight for backend in client.backends()):
        client.get("killed.0", wait_s=0.05)
    engine.kill()

    killed = group("killed", n=32, max_tokens=4000).rollout_ids()
    while client.backends()[0].state is not BackendState.DOWN:
        client.get("killed.0", wait_s=0.05)
    assert client.status().rollouts.get(RolloutState.FAILED, 0) == 0
    client.cancel(killed)
    client.health()
    (backend,) = client.backends()
    assert backend.state is BackendState.DOWN

    report = client.stream_weights([weights], after=6)
    assert report.pending == [backend.backend_id]
    waiting = client.submit([group("waiting", n=4, max_tokens=16)])
    port = int(engine.url.rsplit(":", 1)[1])
    with local.engine(tiny_model, log=tmp_path / "engine.log", port=port):
        rollouts = client.wait([rollout.rollout_id for rollout in waiting], timeout_s=120)
        for rollout in rollouts:
            assert rollout.state is RolloutState.DONE, rollout.error
            assert rollout.trajectory is not None
            assert set(rollout.trajectory.segments[0].policy_versions) <= {7, -1}
        (backend,) = client.backends()
        assert (backend.state, backend.policy_version) == (BackendState.HEALTHY, 7)
    assert psutil.pid_exists(service.pid)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_tool_servers_end_with_the_service(
    engine: local.LocalProcess, tmp_path: Path, end: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "Anything."}')
    command = f"{sys.executable} -m recipes.math_code.corpus_server {tmp_path / 'corpus.jsonl'}"
    options = ["--mcp", f"corpus={command}", "--mcp-tools", "corpus=search"]
    with local.service([engine.url], log=tmp_path / "service.log", options=options) as service:
        children = psutil.Process(service.pid).children()
        (server,) = (one for one in children if "recipes.math_code.corpus_server" in one.cmdline())
        submitted = group("stem", n=1, max_tokens=16)
        submitted.task.agent, submitted.task.data = "stem", {"answer": "42", "mcp": ["corpus"]}
        with RolloutClient(service.url) as client:
            (rollout,) = finished(client, submitted)
        assert (rollout.state, rollout.reward) == (RolloutState.DONE, 0.0)
        getattr(service, end)()
        server.wait(timeout=30)


def test_a_tool_server_that_does_not_answer_is_reported_at_the_start(tmp_path: Path) -> None:
    mcp = ("--mcp", f"web=http://127.0.0.1:{local.free_port()}/mcp?key=secret")
    said = "\n".join(start_of("--port", str(local.free_port()), *mcp))
    assert "prorl: MCP server 'web' cannot be used" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--agent", "no_such_module:Agent"], "no_such_module"),
        (["serve", "--agent", "json:dumps"], "AgentHandler"),
        (["serve", "--backend", "localhost:8000"], "url: is not an engine's URL; write it as http"),
        (["serve", "--backend", "http://localhost:1", "--tokenizer", "/nowhere"], "/nowhere"),
        (["serve", "--default-image", "No Image"], "No Image"),
        (["serve", "--sandbox", "bubblewrap", "--default-image", "debian"], "no images"),
        (["serve", "--mcp", "corpus=no_such_program"], "no_such_program"),
        (["serve", "--mcp-tools", "corpus=search"], "corpus"),
        (["serve", "--judge-model", "a-model"], "--judge-url"),
        (["serve", "--judge-url", "http://localhost/v1"], "--judge-model"),
        (["engine", "--model", "/no/such/model"], "/no/such/model"),
    ],
)
@pytest.mark.sampled(4)
def test_wrong_settings_are_one_clear_line(arguments: list[str], complaint: str) -> None:
    result = prorl(*arguments)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def start_of(*arguments: str) -> list[str]:
    """Returns what a `prorl serve` that fails to start prints, without its INFO lines."""
    result = prorl("serve", "--journal", "none", *arguments)
    assert result.returncode == 2
    lines = [line.strip() for line in result.stderr.splitlines()]
    return [line for line in lines if " INFO " not in line]


def test_a_port_in_use_is_reported_in_one_line_with_a_hint(engine: local.LocalProcess) -> None:
    port = engine.url.rpartition(":")[2]
    said = start_of("--port", port)
    problem = f"prorl: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert said == [problem, "choose another --port"]


def test_a_backend_that_is_no_engine_is_reported_in_one_line_with_a_hint(
    service: local.LocalProcess,
) -> None:
    problem, hint = start_of("--port", str(local.free_port()), "--backend", service.url)
    assert problem.startswith("prorl: ")
    assert service.url.removeprefix("http://") in problem
    assert hint


def test_a_start_is_logged(service: local.LocalProcess, tiny_model: Path) -> None:
    log = service.log.read_text()
    address = f"prorl {__version__} at {service.url}"
    assert f"INFO prorl_service.server.run: {address}: `prorl open` shows it in a browser" in log
    agents = (
        "code, dialogue, harbor, harness, math, nemo_gym, openenv, reasoning_gym, rubric, stem, swe"
    )
    assert f"model {tiny_model.name}; agents: {agents}" in log
    assert ", journal in memory" in log
    assert "sandboxes: " in log


def test_a_service_shows_its_status(service: local.LocalProcess) -> None:
    done = prorl("status", "--url", service.url, check=True)
    assert f"{service.url}: healthy, prorl {__version__}, run " in done.stdout
    assert "rollouts   none" in done.stdout
    assert re.search(r"engine +\S+ healthy, version 0, 0 of \d+ calls", done.stdout)


def test_a_stop_ends_long_polls_of_a_sampler(service: local.LocalProcess) -> None:
    with RolloutClient(service.url, retry_s=0) as client, ThreadPoolExecutor() as threads:
        revision = client.create_sampler("s", SamplerSpec()).revision
        question = threads.submit(client.sampler, "s", revision, 60)
        with RolloutClient(service.url) as other:
            other.health()
        service.stop()
        with suppress(ServiceCallError):  # answered, and perhaps asked again
            question.result(timeout=20)
