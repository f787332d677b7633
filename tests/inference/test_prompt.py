import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.inference.prompt_json import EncodedPrompt

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 6), ids), min_size=1, max_size=6))
def test_json_is_that_of_the_ids_whatever_came_before(turns: list[tuple[int, list[int]]]) -> None:
    newest, prompt = None, list[int]()
    for kept, fresh in turns:
        prompt = [*prompt[:kept], *fresh]
        newest = EncodedPrompt(prompt, before=newest)
        assert orjson.loads(newest.json()) == prompt
        assert len(newest) == len(prompt)


def test_the_previous_prompt_stays_unchanged() -> None:
    before = EncodedPrompt([1, 2])
    EncodedPrompt([1, 2, 3], before=before)
    assert before.json() == b"[1,2]"


def test_ids_beyond_int32_are_refused() -> None:
    with pytest.raises(OverflowError):
        EncodedPrompt([2**31])
