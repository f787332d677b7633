"""The last look at rows before an update: whatever happened to them until then is noticed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import padding_utils, ray_trainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from prorl_service.client import off_policy
from prorl_service.client.off_policy import STOP_NATS, PolicyDiffers
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.local import LocalProcess
from prorl_verl import tripwire
from prorl_verl.rows import rows_of
from prorl_verl.settings import settings_of
from prorl_verl.store import Entries
from prorl_verl.tensors import SAMPLED
from prorl_verl.tripwire import TakenRow, Tripwire
from tests.verl.test_rows import rollout_of, segment
from tests.verl.test_scoring import prompt_of
from tests.verl.test_settings import config
from tests.verl.test_training import train, write_tasks

STEP = 4
VERSION = STEP - 1


def wire(**changes: Any) -> Tripwire:
    changed = config(**changes)
    return Tripwire(changed, settings_of(changed))


def bypassing(**changes: Any) -> Tripwire:
    return wire(algorithm__rollout_correction={"bypass_mode": True, **changes})


masks = st.lists(st.integers(0, 1), min_size=1, max_size=12).filter(any)


@st.composite
def taken(draw: st.DrawFn, oldest: int = VERSION, newest: int = VERSION) -> TakenRow:
    mask = draw(masks)
    logprobs = torch.tensor([-draw(st.floats(0, 9, width=32)) for _ in mask])
    noise = torch.tensor([draw(st.floats(-1e-4, 1e-4)) for _ in mask])
    extra = {SAMPLED: sum(mask), "min_global_steps": oldest, "max_global_steps": newest}
    return TakenRow(torch.tensor(mask), logprobs, logprobs + noise, extra)


def padding() -> TakenRow:
    return TakenRow(torch.zeros(1), torch.zeros(1), torch.zeros(1), {})


@given(st.lists(taken(), min_size=1, max_size=4))
def test_rows_as_they_were_made_are_measured(rows: list[TakenRow]) -> None:
    measured = wire().check([*rows, padding()], step=STEP)
    gaps = [(row.engine - row.trainer).abs()[row.mask.bool()] for row in rows]
    assert measured["prorl/off_policy"] == pytest.approx(float(torch.cat(gaps).mean()))
    assert measured["prorl/off_policy_max"] == pytest.approx(float(torch.cat(gaps).max()))


@given(st.lists(taken(), min_size=1, max_size=4), st.data())
def test_one_token_more_or_less_stops_training(rows: list[TakenRow], data: st.DataObject) -> None:
    rows.append(padding())
    row = data.draw(st.sampled_from(rows))
    place = data.draw(st.integers(0, len(row.mask) - 1))
    row.mask[place] = 1 - row.mask[place]
    with pytest.raises(PolicyDiffers, match="tokens of a row that has"):
        wire().check(rows, step=STEP)


@given(taken(), st.floats(STOP_NATS * 1.01, 50) | st.just(math.nan))
def test_logprobs_of_another_policy_stop_training(row: TakenRow, gap: float) -> None:
    row.trainer.sub_(gap)
    with pytest.raises(PolicyDiffers, match=r"of the policy that is trained|are not numbers"):
        wire().check([row], step=STEP)


@given(st.data(), st.integers(0, 9), st.integers(0, 9))
def test_weights_that_rows_may_have(data: st.DataObject, first: int, second: int) -> None:
    oldest, newest = sorted((first, second))
    row = data.draw(taken(oldest, newest))
    for mode, is_fine in (
        ("sync", oldest == newest == VERSION),
        ("colocate_async", newest <= VERSION),
    ):
        tripped = wire(trainer__v1__trainer_mode=mode)
        if is_fine:
            measured = tripped.check([row], step=STEP)
            assert bool(measured) == (oldest == VERSION)
            continue
        with pytest.raises(PolicyDiffers, match=f"weights {oldest} to {newest}"):
            tripped.check([row], step=STEP)


def test_dynamic_sampling_follows_its_own_rules() -> None:
    old = TakenRow(
        torch.ones(1),
        torch.zeros(1),
        torch.zeros(1),
        {SAMPLED: 1, "min_global_steps": VERSION - 1, "max_global_steps": VERSION},
    )
    filtered = {"algorithm__filter_groups__enable": True}
    carried = {"prorl__dynamic_sampling": {"surplus": "carry"}}
    assert wire(**filtered, **carried).check([old], step=STEP) == {}
    for changes in (filtered, carried):
        with pytest.raises(PolicyDiffers):
            wire(**changes).check([old], step=STEP)


@given(taken())
def test_rejection_may_drop_tokens_but_add_none(row: TakenRow) -> None:
    tripped = wire(algorithm__rollout_correction={"rollout_rs": "token_k1"})
    row.mask[int(row.mask.argmax())] = 0
    tripped.check([row], step=STEP)
    row.mask.fill_(1)
    row.extra[SAMPLED] = len(row.mask) - 1  # type: ignore[index]
    with pytest.raises(PolicyDiffers):
        tripped.check([row], step=STEP)


@given(taken(), st.floats(STOP_NATS * 1.01, 50), st.sampled_from([-1, 1]))
def test_without_recomputed_logprobs_the_updates_own_mean_is_judged(
    row: TakenRow, kl: float, sign: int
) -> None:
    tripped = bypassing()
    assert tripped.check([row], step=STEP) == {}
    measured = tripped.check_bypassed([row, padding()], 0.001 * sign, step=STEP)
    assert measured["prorl/off_policy"] == pytest.approx(0.001)
    with pytest.raises(PolicyDiffers):
        tripped.check_bypassed([row], kl * sign, step=STEP)
    assert wire().check_bypassed([row], kl, step=STEP) == {}


@pytest.mark.parametrize(
    ("setting", "cause"),
    [({"top_p": 0.9}, off_policy.CUT_OFF), ({"quantization": "fp8"}, off_policy.QUANTISED)],
)
def test_only_causes_that_fit_are_named(setting: dict[str, Any], cause: off_policy.Cause) -> None:
    row = TakenRow(
        torch.ones(1),
        torch.zeros(1),
        torch.full((1,), -2.0),
        {SAMPLED: 1, "min_global_steps": VERSION, "max_global_steps": VERSION},
    )
    said = []
    for changes in ({"top_p": 1.0}, {"top_p": 1.0, **setting}):
        named = {f"actor_rollout_ref__rollout__{name}": one for name, one in changes.items()}
        with pytest.raises(PolicyDiffers) as refused:
            wire(**named).check([row], step=STEP)
        said.append(refused.value.message)
    assert [cause.text in one for one in said] == [False, True]
    assert all(off_policy.ANOTHER_RUN.text in one for one in said)


class Queue:
    """TransferQueue with the rows of two rollouts and the rows that VeRL fills a batch with."""

    def __init__(self) -> None:
        self.entries = Entries()
        for place in range(2):
            rollout = rollout_of([segment([1, 0, 1], version=VERSION)])
            rows = rows_of(rollout, max_response_tokens=9)
            named = rollout.model_copy(update={"index": place})
            self.entries.add(prompt_of(), [(named, rows)])
        for fields in self.entries.fields:
            fields["old_log_probs"] = fields["rollout_log_probs"].clone()
        padding_fields, tag = padding_utils.construct_minimal_padding_template(
            self.entries.fields[0], self.entries.tags[0], eos_token_id=0
        )
        padding_fields["old_log_probs"] = torch.zeros(1)
        self.entries.keys.append("pad_0_0")
        self.entries.fields.append(padding_fields)
        self.entries.tags.append(tag)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        assert keys == self.entries.keys
        return list_of_dict_to_tensordict(self.entries.fields).select(*select_fields)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns the batches with which VeRL's own trainers have updated the actor."""
    done: list[Any] = []

    def update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        done.append(batch)
        return batch

    monkeypatch.setattr(PPOTrainer, "_update_actor", update)
    monkeypatch.setattr(ray_trainer, "compute_advantage", ray_trainer.compute_advantage)
    monkeypatch.setattr(ray_trainer.RayPPOTrainer, "_update_actor", update)
    return done


def stock() -> Any:
    return type("Stock", (PPOTrainer,), {"global_steps": STEP})


def careless() -> Any:
    """Returns a trainer of a user's that updates by itself."""

    def update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch

    return type("Careless", (PPOTrainer,), {"global_steps": STEP, "_update_actor": update})


@pytest.mark.parametrize("trainer_of", [stock, careless])
def test_trainers_of_any_class_are_watched(
    trainer_of: Callable[[], Any], updates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, queue = trainer_of(), Queue()
    monkeypatch.setattr(tripwire, "tq", queue)
    tripwire.install(wire())
    batch = KVBatchMeta(partition_id="train", keys=queue.entries.keys, tags=queue.entries.tags)
    metrics: dict[str, Any] = {}
    assert trainer._update_actor(trainer, batch, metrics) is batch
    assert metrics == {"prorl/off_policy": 0.0, "prorl/off_policy_max": 0.0}
    queue.entries.fields[1]["response_mask"][1] = 1
    with pytest.raises(PolicyDiffers, match="takes 3 tokens of a row that has 2"):
        trainer._update_actor(trainer, batch, metrics)
    assert updates == ([batch] if trainer_of is stock else [])


@pytest.mark.logs("PolicyDiffers")
def test_weights_that_another_gave_the_engines_stop_training(
    directory: Path, service: LocalProcess
) -> None:
    """Nobody but the trainer's own arithmetic can know."""
    build_tiny_model(directory / "other", initializer_range=0.1, seed=7)
    write_tasks(directory, *[{}] * 8)
    with pytest.raises(AssertionError) as ended:
        train(
            directory,
            service.url,
            trainer__total_training_steps=3,
            data__custom_cls__path=Path(__file__).with_name("meddling.py"),
            data__custom_cls__name="OtherWeights",
        )
    said = str(ended.value)
    assert "PolicyDiffers: step 2: engine and trainer differ by" in said
    assert "what fits:" in said
    assert "another training or a person gave the engines other weights" in said
