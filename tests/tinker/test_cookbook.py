"""The cookbook's own functions make the same data of our groups, where it is installed."""

import pytest

pytest.importorskip(
    "tinker_cookbook.rl.data_processing",
    reason="needs tinker-cookbook, and with it a newer SDK than SkyRL's server allows",
)

from tinker_cookbook.rl.data_processing import (
    assemble_training_data,
    compute_advantages,
)

from prorl_tinker.convert import samples_of
from prorl_tinker.cookbook import trajectory_groups
from tests.tinker.test_convert import FAILED, column, done


def test_the_cookbook_assembles_the_data_that_we_do() -> None:
    group = [done(1.0, [1, 0, 1]), done(0.0, [1, 1]), FAILED]
    groups = trajectory_groups([group, [FAILED, done(1.0)]])
    assert len(groups) == 1
    data, places = assemble_training_data(groups, compute_advantages(groups))
    ours = samples_of(group, "mask")
    assert len(data) == len(ours) == len(places) == 2
    for theirs, own in zip(data, ours, strict=True):
        assert theirs.model_input.to_ints() == own.datum.model_input.to_ints()
        assert list(theirs.loss_fn_inputs["target_tokens"].data) == column(own, "target_tokens")
        assert list(theirs.loss_fn_inputs["logprobs"].data) == column(own, "logprobs")
        assert [one != 0 for one in theirs.loss_fn_inputs["advantages"].data] == [
            one == 1 for one in own.mask
        ]


def test_several_segments_are_several_data() -> None:
    groups = trajectory_groups([[done(1.0, [1, 1], [0, 1]), done(0.0)]])
    data, _ = assemble_training_data(groups, compute_advantages(groups))
    assert len(data) == 3
