from pathlib import Path

import pytest

from prorl_service.tokens.chat import ChatFormat
from tests.exports.made_rollouts import Made, make


@pytest.fixture(scope="session")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tiny_model, tmp_path_factory.mktemp("journal"))


@pytest.fixture(scope="session")
def model_chat(tiny_model: Path) -> ChatFormat:
    return ChatFormat.load(tiny_model)
