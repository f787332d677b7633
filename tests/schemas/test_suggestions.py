import pytest
from pydantic import ValidationError

from prorl_service.schemas import Group
from prorl_service.schemas.groups import SubmitRequest
from prorl_service.schemas.suggestions import nearest, nearest_fields

TASK = {"task_id": "t", "agent": "math", "messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ({"limits": {"max_turn": 3}}, "did you mean max_turns?"),
        (
            {"grup_id": "g", "limits": {"max_turn": 3}},
            "did you mean max_turns? did you mean group_id?",
        ),
        ({"task": TASK | {"agnt": "math"}}, "did you mean agent?"),
        ({"colour": "red"}, ""),
        ({"n": -1}, ""),
    ],
)
def test_the_nearest_field_of_the_same_object_is_offered(
    group: dict[str, object], hint: str
) -> None:
    given = {"groups": [{"group_id": "g", "task": TASK} | group]}
    with pytest.raises(ValidationError) as refused:
        SubmitRequest.model_validate(given)
    assert nearest_fields(refused.value.errors(), SubmitRequest) == hint


def test_no_model_knows_no_fields() -> None:
    with pytest.raises(ValidationError) as refused:
        Group.model_validate({"grup_id": "g"})
    assert nearest_fields(refused.value.errors(), None) == ""
    assert nearest("wait", ["n", "state"]) == ""
