"""Directories of LoRA adapters, as the plug-in for vLLM leaves them."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prorl_vllm.adapters import install


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_adapter_replaces_the_previous_one(tmp_path: Path) -> None:
    directory = tmp_path / "adapter"
    for number in (1, 2):
        file = io.BytesIO(b"matrices %d" % number)
        file.read(3)  # vLLM's workers may have read some of it
        install(file, directory, f'{{"r": {number}}}')
        assert content(directory) == {
            "adapter_config.json": b'{"r": %d}' % number,
            "adapter_model.safetensors": b"matrices %d" % number,
        }
    assert directory.stat().st_mode & 0o077 == 0


def test_workers_of_one_host_may_install_concurrently(tmp_path: Path) -> None:
    directory, matrices = tmp_path / "adapter", bytes(2**20)
    with ThreadPoolExecutor(8) as workers:
        for _ in range(32):
            workers.submit(install, io.BytesIO(matrices), directory, "{}")
    assert content(directory) == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": matrices,
    }


def test_a_write_that_fails_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "adapter").write_text("a file")
    with pytest.raises(OSError, match="adapter"):
        install(io.BytesIO(b"matrices"), tmp_path / "adapter", "{}")
