"""Misspelt options, refused with a message that lists the allowed values."""

from typing import Any

import pytest

from prorl_service.client.trainable import SoftPunishment
from prorl_service.schemas import Limits
from prorl_service.schemas.sampling import SamplerSpec
from prorl_trl import ProRLRollout
from prorl_trl.async_rollouts import ProRLRolloutWorker, ProRLWeightTransfer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"importance_sampling": "on"}, "importance_sampling='on': .*'auto' or 'off'"),
        ({"overlong": "Mask"}, "overlong='Mask': .*'mask' or 'keep'; .*SoftPunishment"),
        ({"overlong": "drop"}, "overlong='drop'"),
        ({"segments": "all"}, "segments='all': .*'refuse', 'longest' or 'last'"),
        ({"on_failure": "ignore"}, "on_failure='ignore': .*'unscorable' or 'raise'"),
        ({"wire": "msgpack"}, "wire='msgpack': .*'packed' or 'json'"),
        ({"dynamic_sampling": "yes"}, "dynamic_sampling='yes': .*boolean; .*SamplerSpec"),
        ({"deadline_s": 0}, "deadline_s=0: .*greater than 0"),
        ({"limits": 5}, "limits=5: .*Limits"),
        ({"limits": {"max_turn": 5}}, "limits={'max_turn': 5}"),
        ({"observe": "print"}, "observe='print': .*callable"),
    ],
)
def test_a_refused_option_lists_its_allowed_values(
    idle_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ProRLRollout(idle_url, **options)


def test_allowed_values_are_accepted(idle_url: str) -> None:
    punishment = SoftPunishment(8, 4)
    assert ProRLRollout(idle_url, overlong="keep", dynamic_sampling=True)
    assert ProRLRollout(idle_url, overlong=punishment, dynamic_sampling=SamplerSpec(), token=None)
    assert ProRLRollout(idle_url, limits=Limits(max_turns=3), deadline_s=20, observe=print)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlong": "Mask"}, "'mask' or 'keep'"),
        ({"wire": "msgpack"}, "'packed' or 'json'"),
        ({"deadline_s": -1}, "greater than 0"),
    ],
)
def test_the_asynchronous_worker_checks_its_options(
    idle_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ProRLRolloutWorker(idle_url, None, None, **options)
    with pytest.raises(ValueError, match="deadline_s=-1"):
        ProRLWeightTransfer(idle_url, deadline_s=-1)
