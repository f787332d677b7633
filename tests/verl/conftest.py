"""Tests of the VeRL plug-in, collected only where verl is installed (`scripts/test-verl`)."""

import os
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from prorl_service import local

# Otherwise other tests take all the time from Ray's workers.
os.environ.update(RAY_worker_niceness="0")

try:
    version("verl")  # an import would find this directory
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # verl imports deprecated parts of Ray, and engines that are missing
        import verl.experimental.agent_loop
        import verl.trainer.ppo.v1.trainer_base
        import verl.workers.rollout.replica  # noqa: F401

collect_ignore = [] if find_spec("vllm") else ["test_vllm.py"]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.verl.data import build_policy

    return build_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def directory(tmp_path: Path, policy: Path) -> Path:
    (tmp_path / "model").symlink_to(policy)
    return tmp_path


@pytest.fixture
def service(tmp_path: Path) -> Iterator[local.LocalProcess]:
    from tests.verl.training import SERVICE_OPTIONS

    with local.service([], log=tmp_path / "service.log", options=SERVICE_OPTIONS) as service:
        yield service
