"""The data sets that can be prepared: where they are, and how a row becomes a problem."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from prorl_service.errors import InvalidRequest
from recipes.common.data.fields import Row, of_validation
from recipes.math_code.data import mathematics, programs, puzzles, science
from recipes.math_code.rows import PROBLEM, Problem


@dataclass(frozen=True, slots=True)
class DataSet:
    hub: str
    split: str
    convert: Callable[[Row], Problem | None]
    """Converter of rows; returns None for a row of another part of the data set."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files of each split, where the hub's data set has a script instead of splits."""

    def files(self, split: str) -> tuple[str, ...]:
        """Returns a split's files on the hub; none if the hub knows them. Raises
        `InvalidRequest`."""
        if self.splits and split not in self.splits:
            known = ", ".join(self.splits)
            raise InvalidRequest.of_field("split", f"there is no {split!r}, only {known}")
        return self.splits.get(split, ())


LIVECODEBENCH = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, 7)))
"""Files on the hub; each has the problems that a version added."""

DATA_SETS = {
    puzzles.DATA_SET: DataSet("", "train", puzzles.from_row),
    "deepscaler": DataSet(
        "agentica-org/DeepScaleR-Preview-Dataset", "train", mathematics.from_deepscaler
    ),
    "dapo_math_17k": DataSet("BytedTsinghua-SIA/DAPO-Math-17k", "train", mathematics.from_dapo),
    "eurus_math": DataSet("PRIME-RL/Eurus-2-RL-Data", "train", mathematics.from_eurus_math),
    "eurus_code": DataSet("PRIME-RL/Eurus-2-RL-Data", "train", programs.from_eurus_code),
    "scp_116k": DataSet("EricLu/SCP-116K", "train", science.from_scp),
    "aime24": DataSet("math-ai/aime24", "test", mathematics.from_aime24),
    "aime25": DataSet("math-ai/aime25", "test", mathematics.from_aime25),
    "amc23": DataSet("math-ai/amc23", "test", mathematics.from_amc23),
    "livecodebench": DataSet(
        "livecodebench/code_generation_lite",
        "v6",
        programs.from_livecodebench,
        {
            **{f"v{number}": (file,) for number, file in enumerate(LIVECODEBENCH, start=1)},
            **{f"release_v{number}": LIVECODEBENCH[:number] for number in range(1, 7)},
        },
    ),
}


def _as_it_is(row: Row) -> Problem:
    return PROBLEM.validate_python(row.fields)


IN_NORMAL_FORM = DataSet("", "all", _as_it_is)


def convert(data_set: DataSet, row: Row) -> Problem | None:
    """Converts a row. Raises `RowError`, also for a problem that the service would refuse."""
    try:
        problem = data_set.convert(row)
        if problem is not None:
            problem.task({})
    except ValidationError as error:
        raise row.error(*of_validation(error, "the problem")) from error
    return problem
