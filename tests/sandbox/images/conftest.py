from pathlib import Path

import pytest

from prorl_service.sandbox.images import ImageCache
from tests.sandbox.images.oci import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> ImageCache:
    return ImageCache(root, build_timeout_s=60)
