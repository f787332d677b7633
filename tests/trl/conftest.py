"""A real service on a real engine with a tiny random policy, each in its own process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client.policy import _held as held_policies
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests import real_engines
from tests.faults.processes import port_to_come_back_to
from tests.trl.status_service import status_service
from tests.trl.training import SERVICE_OPTIONS, Trainings

WARNINGS = (
    "ignore:.*rollout_func.*experimental:UserWarning",
    "ignore:.*gradient_checkpointing.*:FutureWarning",
    "ignore:You are importing from 'trl.exp",
)
"""Warnings that TRL gives in all trainings, or in all imports of its asynchronous trainer."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(*WARNINGS))


@pytest.fixture(autouse=True)
def _no_training_left() -> Iterator[None]:
    """Ends a training that failed in this process: it holds the policy of a service that other
    tests share until the process ends."""
    yield
    for held in [*held_policies.values()]:
        held.release()


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a policy with tied embeddings, as the small Qwen3 models have."""
    directory = tmp_path_factory.mktemp("policy")
    build_tiny_model(directory, tie_word_embeddings=True, initializer_range=0.1)
    return directory


@pytest.fixture(scope="session", params=real_engines.ENGINES)
def engine_url(
    request: pytest.FixtureRequest, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    with real_engines.engine(request.param, policy, log=log) as engine:
        yield engine.url


@pytest.fixture(scope="session")
def service_url(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("logs") / "service.log"
    with local.service([engine_url], log=log, options=SERVICE_OPTIONS) as service:
        yield service.url


@pytest.fixture(scope="session")
def idle_url() -> Iterator[str]:
    """Yields the address of a service that is asked for its status alone."""
    with status_service() as url:
        yield url


@contextmanager
def started(policy: Path, logs: Path, *options: str) -> Iterator[str]:
    """Yields the address of a service on an engine of its own."""
    given = [*SERVICE_OPTIONS, *options]
    with (
        local.engine(policy, log=logs / "engine.log") as engine,
        local.service([engine.url], log=logs / "service.log", options=given) as service,
    ):
        yield service.url


@pytest.fixture(scope="session")
def other_url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields a service that leaves retries to the trainer."""
    with started(policy, tmp_path_factory.mktemp("logs"), "--max-attempts", "1") as url:
        yield url


@pytest.fixture(scope="session")
def unweighted_url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields a service that no training gives weights."""
    with started(policy, tmp_path_factory.mktemp("logs")) as url:
        yield url


class RestartedService:
    """A service, on an engine of its own, that can be started again at its port."""

    def __init__(self, running: ExitStack, policy: Path, directory: Path, *options: str) -> None:
        log = directory / "engine.log"
        engine = running.enter_context(local.engine(policy, log=log))
        self._running, self._log, self._options = running, directory / "service.log", options
        self._engine, self._port = engine.url, port_to_come_back_to()
        self.start()

    def start(self) -> None:
        options = [*SERVICE_OPTIONS, *self._options]
        service = local.service([self._engine], log=self._log, port=self._port, options=options)
        self.process = self._running.enter_context(service)
        self.url = self.process.url

    def restart(self) -> None:
        self.process.kill()
        self.start()


@pytest.fixture
def start_service(policy: Path, tmp_path: Path) -> Iterator[Callable[..., RestartedService]]:
    """Yields a function of options of `prorl serve`."""
    with ExitStack() as running:
        yield partial(RestartedService, running, policy, tmp_path)


@pytest.fixture
def train(service_url: str, policy: Path, tmp_path: Path) -> Trainings:
    return Trainings(service_url, policy, tmp_path)


@pytest.fixture
def train_there(other_url: str, policy: Path, tmp_path: Path) -> Trainings:
    return Trainings(other_url, policy, tmp_path)


@pytest.fixture
def train_unweighted(unweighted_url: str, policy: Path, tmp_path: Path) -> Trainings:
    return Trainings(unweighted_url, policy, tmp_path)
