"""The data sets that can be prepared: where they are, and how a row becomes an instance."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from prorl_service.agents.swe.data import SweData
from recipes.common.data.fields import Row, RowError, of_validation
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.environments import GradedBy
from recipes.swebench.data.r2e_gym import from_r2e_gym
from recipes.swebench.data.swe_bench import from_skyrl, from_swe_bench
from recipes.swebench.data.swe_smith import from_swe_smith
from recipes.swebench.own import from_own
from recipes.swebench.rows import unusable


@dataclass(frozen=True, slots=True)
class DataSet:
    hub: str
    split: str
    convert: Callable[[Row, GradedBy], Converted]


DATA_SETS = {
    "verified": DataSet("SWE-bench/SWE-bench_Verified", "test", from_swe_bench),
    "lite": DataSet("SWE-bench/SWE-bench_Lite", "test", from_swe_bench),
    "full": DataSet("SWE-bench/SWE-bench", "test", from_swe_bench),
    "swe_gym": DataSet("SWE-Gym/SWE-Gym", "train", from_swe_bench),
    "skyrl_293": DataSet("NovaSky-AI/SkyRL-v0-293-data", "train", from_skyrl),
    "r2e_gym": DataSet("R2E-Gym/R2E-Gym-Subset", "train", from_r2e_gym),
    "own": DataSet("", "all", from_own),
    "swe_smith": DataSet("SWE-bench/SWE-smith", "train", from_swe_smith),
}


def convert(data_set: DataSet, row: Row, graded_by: GradedBy) -> Converted:
    """Converts a row. Raises `RowError`, also for an instance that the service would refuse."""
    try:
        converted = data_set.convert(row, graded_by)
        SweData.model_validate(converted.instance.task().data)
        if reason := unusable(converted.instance):
            raise row.error("no patch can be graded honestly", reason)
    except RowError:
        raise
    except ValidationError as error:
        raise row.error(*of_validation(error, "the instance")) from error
    except ValueError as error:  # such as a command with an open quote
        raise row.error("the row cannot be converted", str(error)) from error
    return converted
