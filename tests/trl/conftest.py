"""A real service on a real engine, with a tiny random policy, each in a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.inference.engine.tiny import build_tiny_model
from tests.trl.training import SERVICE_OPTIONS


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied embeddings, as the small Qwen3 models have."""
    directory = tmp_path_factory.mktemp("policy")
    build_tiny_model(directory, tie_word_embeddings=True, initializer_range=0.1)
    return directory


@pytest.fixture(scope="session")
def service_url(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("logs")
    with (
        local.engine(policy, log=logs / "engine.log") as engine,
        local.service([engine.url], log=logs / "service.log", options=SERVICE_OPTIONS) as service,
    ):
        yield service.url
