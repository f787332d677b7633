"""These tests run in an environment of their own (`scripts/test-verl`): no other has verl."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

try:
    version("verl")  # an import would find this directory
    collect_ignore_glob = []
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.verl.data import build_policy

    return build_policy(tmp_path_factory.mktemp("policy"))
