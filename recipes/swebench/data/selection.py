"""Selects the instances of a data set to use: converts rows, and keeps the reasons against
others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipes.common.data.fields import Row, RowError
from recipes.common.data.preparation import Rejected
from recipes.common.data.sources import Source, digest
from recipes.swebench import offline
from recipes.swebench.data.columns import unwrapped, value_at
from recipes.swebench.data.converter import convert
from recipes.swebench.data.environments import GradedBy
from recipes.swebench.grading import Admission
from recipes.swebench.rows import SweInstance


@dataclass(frozen=True, slots=True)
class Selection:
    source: Source
    instances: Sequence[SweInstance]
    rejected: Sequence[Rejected] = ()
    rows_read: int = 0
    tests_left_out: int = 0

    def without(self, reasons: Mapping[str, str], reason: str) -> "Selection":
        """Rejects the instances in `reasons`, keyed by id, each with a detail of its own."""
        kept = [one for one in self.instances if one.instance_id not in reasons]
        gone = [
            Rejected(instance=id_, reason=reason, detail=detail) for id_, detail in reasons.items()
        ]
        return Selection(
            self.source, kept, [*self.rejected, *gone], self.rows_read, self.tests_left_out
        )

    def admitted(self, admissions: Mapping[str, Admission]) -> "Selection":
        """Takes the instances as they were admitted, by id; rejects the others."""
        found = [admissions[one.instance_id] for one in self.instances]
        reasons = {
            one.instance_id: admission.reason
            for one, admission in zip(self.instances, found, strict=True)
            if admission.row is None
        }
        rows = [admission.row for admission in found if admission.row is not None]
        flaky = sum(len(admission.flaky) for admission in found if admission.row is not None)
        rest = self.without(reasons, "not admitted")
        return replace(rest, instances=rows, tests_left_out=self.tests_left_out + flaky)


def select(
    source: Source,
    graded_by: GradedBy,
    columns: Mapping[str, str],
    limit: int | None = None,
    on_row: Callable[[], None] = lambda: None,
) -> Selection:
    """Selects among all rows, or stops after the first `limit` that can be used."""
    instances: dict[str, SweInstance] = {}
    rejected: list[Rejected] = []
    read = left_out = 0
    for fields in source.rows:
        if limit is not None and len(instances) >= limit:
            break
        read += 1
        on_row()
        name = _named(fields, columns)
        row = Row(fields, f"row {read} ({name})" if name else f"row {read}")
        try:
            converted = convert(row, graded_by, columns)
            if converted.instance.instance_id in instances:
                raise row.error("its instance_id occurred before")
        except RowError as error:
            instance = name or row.where
            rejected.append(Rejected(instance=instance, reason=error.reason, detail=str(error)))
            continue
        instances[converted.instance.instance_id] = converted.instance
        left_out += len(converted.left_out)
    return Selection(source, list(instances.values()), rejected, read, left_out)


def select_offline(limit: int | None, progress: Callable[[str], None]) -> Selection:
    """Selects the real bugs that are built from source releases (`recipes.swebench.offline`)."""
    ids = [release.instance_id for release in offline.releases()][:limit]
    rows = offline.build_all(offline.default_directory(), only=ids, progress=progress)
    revision = f"{offline.BUILD_VERSION}, sha256:{digest(offline.INSTANCES)}"
    return Selection(Source("source releases", revision, "all", [], len(rows)), rows, (), len(rows))


def _named(fields: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    name = value_at(unwrapped(Row(fields, "")).fields, columns.get("id", "instance_id"))
    return name if isinstance(name, str) else ""
