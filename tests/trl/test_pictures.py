"""A GRPOTrainer's model sees the pictures of each row: of its task, and of its tools."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from prorl_service import local
from prorl_service.client.off_policy import PolicyDiffers
from prorl_service.schemas import FinishReason, Limits, Rollout, Sampling, Trajectory
from prorl_service.schemas.pictures import canonical
from prorl_trl import ProRLRollout, with_task
from prorl_trl.convert import GroupMaker, row_of
from prorl_trl.pictures import RowPictures
from recipes.demo.train import TrainConfig, dataset_row, make_trainer
from recipes.math_code.offline.look import CONTEXT, LIMITS, Look, instances, policy
from tests import builders
from tests.pictures import encoded
from tests.trl.training import SMALL

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CONFIG = TrainConfig(steps=2, groups_per_step=4, rollouts_per_group=4, limits=LIMITS)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy(tmp_path_factory.mktemp("cache"))


@contextmanager
def served(model: Path, logs: Path) -> Iterator[str]:
    options, kind = ["--max-model-len", str(CONTEXT)], ["--sandbox", "process"]
    with (
        local.engine(model, log=logs / "engine.log", options=options) as engine,
        local.service([engine.url], log=logs / "service.log", options=kind) as service,
    ):
        yield service.url


@pytest.fixture(scope="module")
def url(seeing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(seeing, tmp_path_factory.mktemp("logs")) as url:
        yield url


def looks(*, is_file: bool, count: int = 8) -> list[Look]:
    return [*islice(instances("train", seed=0, is_file=is_file), count)]


def weights(trainer: Any, part: str) -> dict[str, torch.Tensor]:
    named = trainer.model.named_parameters()
    return {name: one.detach().clone() for name, one in named if part in name}


def test_the_trainer_sees_what_the_policy_saw(url: str, seeing: Path, tmp_path: Path) -> None:
    """Pictures in prompts and from tools in one batch; its vision learns, too."""
    tasks = [one.task() for is_file in (False, True) for one in looks(is_file=is_file)]
    observed: list[Rollout] = []
    trainer = make_trainer(seeing, url, tmp_path, CONFIG, tasks=tasks, observe=observed.extend)
    before = weights(trainer, "visual")
    trainer.train()
    history = [one for one in trainer.state.log_history if "reward" in one]
    assert max(one["sampling/sampling_logp_difference/max"] for one in history) < 1e-4
    assert [one.error for one in observed if one.error] == []
    places = {bool(one.trajectory.pictures) for one in observed if one.trajectory}
    assert places == {True, False}
    after = weights(trainer, "visual")
    assert any(not torch.equal(one, before[name]) for name, one in after.items())


def test_a_trainer_that_sees_another_picture_is_noticed(
    seeing_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A random policy, whose every token depends on what it sees."""
    expect = RowPictures.expect

    def swapped(self: RowPictures, rows: Any) -> None:
        expect(self, rows)
        white = encoded(Image.new("RGB", (56, 56), "white"))
        self._known = {kind: dict.fromkeys(one, white) for kind, one in self._known.items()}

    monkeypatch.setattr(RowPictures, "expect", swapped)
    rows = [dataset_row(one.task()) for one in looks(is_file=False)]
    with served(seeing_model, tmp_path) as url:
        limits = Limits(max_turns=1, max_response_tokens=12)
        rollouts = ProRLRollout(url, limits=limits, overlong="keep")
        trainer = GRPOTrainer(
            model=str(seeing_model),
            processing_class=AutoTokenizer.from_pretrained(seeing_model),
            args=GRPOConfig(output_dir=str(tmp_path / "out"), **SMALL),
            train_dataset=Dataset.from_list(rows),
            rollout_func=rollouts,
            reward_funcs=rollouts.reward_funcs,
        )
        said = ""
        try:
            trainer.train()
        except PolicyDiffers as error:  # by a nat on average; less is warned about
            said = str(error)
    assert "engine and trainer differ by" in said + caplog.text


def test_a_trainer_that_shows_none_fails(
    url: str, seeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowPictures, "__init__", lambda *_: None)
    monkeypatch.setattr(RowPictures, "expect", lambda *_: None)
    trainer = make_trainer(
        seeing, url, tmp_path, CONFIG, tasks=[one.task() for one in looks(is_file=False)]
    )
    with pytest.raises(IndexError):
        trainer.train()


def test_pictures_of_a_column_of_the_data_set_reach_the_policy() -> None:
    """TRL puts those of the columns `image` and `images` into messages, as PIL's."""
    shown = Image.new("RGB", (56, 56), "red")
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": shown},
        {"type": "text", "text": "Which?"},
    ]
    prompt = with_task([{"role": "user", "content": "Which?"}], task_id="t", agent="math")
    prompt[-1]["content"] = parts
    maker = GroupMaker(None, Sampling(), Limits())
    [group] = maker.groups([prompt] * 2, n=2, name="g")
    [message] = group.task.messages
    assert message.content == "Which?"
    assert canonical(message.pictures[0].content) == canonical(encoded(shown))
    parts[0]["image"] = shown.convert("RGBA")
    with pytest.raises(ValueError, match="of mode RGBA"):
        maker.groups([prompt] * 2, n=2, name="g")


def test_a_row_with_a_sampled_placeholder_is_not_used() -> None:
    rollout = builders.rollout("r.0", reward=1.0)
    rollout.trajectory = Trajectory(
        segments=[builders.segment()],
        turns=[builders.turn()],
        finish_reason=FinishReason.FINISHED,
        sampling=Sampling(),
    )
    ids = rollout.trajectory.segments[0].response_ids
    given: dict[str, Any] = {"eos_id": 0, "segments": "refuse", "overlong": "keep"}
    assert row_of(rollout, **given, placeholder=max(ids) + 1).failure is None
    failure = row_of(rollout, **given, placeholder=ids[0]).failure
    assert failure is not None
    assert "sampled the placeholder" in failure.message
