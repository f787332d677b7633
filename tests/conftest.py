from pathlib import Path

import pytest

from prorl_service.tokens.chat import ChatFormat


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a tokenizer that knows fewer ids than the model samples."""
    from prorl_service.inference.engine.tiny import build_tiny_model

    directory = tmp_path_factory.mktemp("tiny-model")
    build_tiny_model(directory)
    return directory


@pytest.fixture(scope="session")
def chat(tiny_model: Path) -> ChatFormat:
    return ChatFormat.load(tiny_model)
