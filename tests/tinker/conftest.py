"""Tests of Tinker's plug-in, collected only where SkyRL is installed (`scripts/test-tinker`).

One server is shared: JAX compiles for a minute.
"""

import os
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model

try:
    version("skyrl")  # an import would find this directory's neighbour
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["TINKER_TELEMETRY"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tinker  # noqa: F401


SDK_S_CONNECTION = (
    r"ignore:Exception ignored in. <(socket.socket|function _SelectorTransport)"
    ":pytest.PytestUnraisableExceptionWarning"
)
"""Filter of warnings that Tinker's SDK gives, which leaves its first connection unclosed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(SDK_S_CONNECTION))


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    build_tiny_model(directory, tie_word_embeddings=True, initializer_range=0.1)
    return directory


@pytest.fixture(scope="session")
def server_url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from recipes.common import tinker_server

    with tinker_server.running(policy, tmp_path_factory.mktemp("server")) as server:
        yield server.url


@pytest.fixture(scope="session")
def service_client(server_url: str) -> Any:
    import tinker

    return tinker.ServiceClient(base_url=server_url, api_key="tml-dummy")


@pytest.fixture(scope="session")
def service_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.tinker.training import SERVICE_OPTIONS

    log = tmp_path_factory.mktemp("logs") / "service.log"
    with local.service([], log=log, options=SERVICE_OPTIONS) as service:
        yield service.url
