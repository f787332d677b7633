"""Directories of LoRA adapters, as vLLM loads them. Knows nothing of vLLM."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO


def install(file: BinaryIO, directory: Path, config: str) -> None:
    """Replaces the adapter in `directory` by the one with the matrices of `file`. Workers of one
    host may do so at the same time."""
    directory.mkdir(mode=0o700, exist_ok=True)
    file.seek(0)
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as whole:
        shutil.copyfileobj(file, whole)
    with tempfile.NamedTemporaryFile("w", dir=directory, delete=False) as text:
        text.write(config)
    os.replace(text.name, directory / "adapter_config.json")
    os.replace(whole.name, directory / "adapter_model.safetensors")
