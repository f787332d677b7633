"""Preparation of a data set: rows, images by the real apptainer, admission, and failures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from prorl_service.errors import InvalidRequest, ProRLError, SandboxError
from recipes.swebench import prepare as preparing
from recipes.swebench.data import prefetch
from recipes.swebench.data.columns import DATA
from recipes.swebench.grading import Admission
from recipes.swebench.prepare import Manifest, Options, prepare
from recipes.swebench.rows import SweInstance, read_rows
from tests.recipes.swebench.data import published
from tests.recipes.swebench.data.published import Fields
from tests.sandbox.images.oci import Layout
from tests.sandbox.images.registry import FakeRegistry


def written(directory: Path, *rows: Fields) -> Path:
    path = directory / "given.jsonl"
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    return path


def numbered(number: int, **changed: Any) -> Fields:
    return published.swe_bench(instance_id=f"pallets__flask-{number}", **changed)


def options(directory: Path, path: Path, **changed: Any) -> Options:
    common = {"dataset": "verified", "output": directory / "out", "path": path}
    return Options(**{**common, "image_cache": directory / "cache", **changed})


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_unusable_rows_are_listed_and_counted(tmp_path: Path) -> None:
    given = written(
        tmp_path,
        numbered(1, PASS_TO_PASS=json.dumps(["tests/test_core.py::test_cut[a"])),
        numbered(2, patch=""),
        numbered(1),
        numbered(3, patch=""),
        numbered(4, problem_statement="one\u2028two"),
    )
    manifest = await prepare(options(tmp_path, given, with_images=False))
    assert manifest.rows_read == 5
    assert manifest.instances == 2
    assert manifest.rejected == {
        "patch is missing": 2,
        "its instance_id occurred before": 1,
    }
    assert manifest.tests_left_out == 1
    assert manifest.revision.startswith("sha256:")
    assert set(manifest.versions) == {"python", "prorl-service", "datasets", "pydantic"}
    out = tmp_path / "out"
    assert Manifest.model_validate_json((out / "manifest.json").read_text()) == manifest
    rows = read_rows(out / "rows.jsonl")
    assert [row.instance_id for row in rows] == ["pallets__flask-1", "pallets__flask-4"]
    assert rows[1].problem_statement == "one\u2028two"
    assert lines(out / "rejected.jsonl")[0] == {
        "instance": "pallets__flask-2",
        "reason": "patch is missing",
        "detail": "row 2 (pallets__flask-2): patch is missing: the row has no patch;"
        " give --column patch=COLUMN",
    }


async def test_rows_of_several_layouts_are_read_and_bad_ones_shown_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SHOWN", 2)
    rows = [published.rebench(), published.pro(), published.nemotron(numbered(1))]
    bad = [published.live(instance_id=f"bad-{n}", test_patch="") for n in range(3)]
    given = written(tmp_path, *bad, *rows)
    manifest = await prepare(options(tmp_path, given, with_images=False, dataset="own"))
    assert (manifest.instances, manifest.rejected) == (3, {"test_patch is missing": 3})
    missing = "test_patch is missing: the row has no test_patch; give --column test_patch=COLUMN"
    assert capsys.readouterr().err.splitlines() == [
        *(f"row {n + 1} (bad-{n}): {missing}" for n in range(2)),
        "and 1 more, all in rejected.jsonl",
    ]


def test_data_sets_are_those_of_the_layouts() -> None:
    assert {*get_args(preparing.Name)} == {*DATA.sets, "own", "offline"}


async def test_a_limit_counts_only_usable_instances_and_a_directory_has_one_data_set(
    tmp_path: Path,
) -> None:
    given = written(tmp_path, numbered(1, patch=""), numbered(2), numbered(3))
    manifest = await prepare(options(tmp_path, given, with_images=False, limit=1))
    assert manifest.rows_read == 2
    [row] = read_rows(tmp_path / "out/rows.jsonl")
    assert row.instance_id == "pallets__flask-2"
    with pytest.raises(ProRLError, match="out holds verified"):
        await prepare(options(tmp_path, given, with_images=False, dataset="lite"))


async def test_nothing_is_written_if_no_row_can_be_used(tmp_path: Path) -> None:
    given = written(tmp_path, published.swe_smith(image_name=None))
    with pytest.raises(ProRLError, match="no row can be used: 1 with: test_patch is missing"):
        await prepare(options(tmp_path, given))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "option"), [({"path": Path("rows")}, "from"), ({"revision": "1"}, "revision")]
)
async def test_the_offline_data_set_cannot_be_read_from_elsewhere(
    tmp_path: Path, given: dict[str, Any], option: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{option}: offline comes with this repository"):
        await prepare(Options("offline", tmp_path / "out", **given))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "layout")
    for tag in ("a", "b"):
        layout.add(f"the image {tag}", tag=tag)
    return layout


@pytest.mark.processes
async def test_images_are_fetched_once_and_their_digests_kept(
    tmp_path: Path, layout: Layout
) -> None:
    async with FakeRegistry(layout, tokens=True) as registry:
        a, b = registry.reference(tag="a"), registry.reference(tag="b")
        given = written(tmp_path, *(numbered(n, image=[a, b][n % 2]) for n in range(4)))
        first = await prepare(options(tmp_path, given))
        assert first.complete
        digests = {name: image.digest for name, image in first.images.items()}
        assert digests == {a: layout.entries[0]["digest"], b: layout.entries[1]["digest"]}
        registry.requests.clear()
        assert await prepare(options(tmp_path, given)) == first
        assert registry.requests == []


@pytest.mark.processes
async def test_a_rate_limited_registry_is_waited_for(tmp_path: Path, layout: Layout) -> None:
    waits: list[float] = []
    async with FakeRegistry(layout) as registry:
        registry.status = 429

        async def pause(wait_s: float) -> None:
            waits.append(wait_s)
            if len(waits) == 3:
                registry.status = 200

        given = written(tmp_path, numbered(1, image=registry.reference(tag="a")))
        manifest = await prepare(options(tmp_path, given), pause=pause)
    assert waits == list(prefetch.WAITS_S[:3])
    assert manifest.complete
    assert len(manifest.images) == 1


@pytest.mark.processes
async def test_images_that_cannot_be_fetched_reject_their_instances(
    tmp_path: Path, layout: Layout
) -> None:
    async def no_pause(_: float) -> None:
        pass

    async with FakeRegistry(layout) as registry:
        absent, here = registry.reference(tag="absent"), registry.reference(tag="a")
        given = written(tmp_path, numbered(1, image=absent), numbered(2, image=here))
        manifest = await prepare(options(tmp_path, given), pause=no_pause)
        assert manifest.complete
        assert manifest.rejected == {"its image cannot be fetched": 1}
        assert (
            "it does not exist (check the name"
            in lines(tmp_path / "out/rejected.jsonl")[0]["detail"]
        )
        registry.status = 503
        later = options(tmp_path, given, image_cache=tmp_path / "other")
        manifest = await prepare(later, pause=no_pause)
        assert not manifest.complete
        assert manifest.instances == 0
        registry.status = 200
        assert (await prepare(later, pause=no_pause)).instances == 1


async def test_disk_space_is_checked_first(tmp_path: Path, layout: Layout) -> None:
    async with FakeRegistry(layout) as registry:
        given = written(tmp_path, numbered(1, image=registry.reference(tag="a")))
        with pytest.raises(
            ProRLError, match=r"1 images need about 3000000 GB .* has \d+ GB"
        ) as error:
            await prepare(options(tmp_path, given, image_mb=1e9))
        assert "--image-mb" in error.value.hint
        assert registry.requests == []


async def test_admission_continues_where_it_stopped(tmp_path: Path) -> None:
    given = written(tmp_path, *(numbered(n) for n in range(3)))
    asked: list[str] = []

    async def admit(row: SweInstance) -> Admission:
        asked.append(row.instance_id)
        if row.instance_id.endswith("2"):
            raise SandboxError("it is gone", retryable=len(asked) == 3)
        if row.instance_id.endswith("1"):
            return Admission(None, reason="it is wrong")
        return Admission(row.model_copy(update={"PASS_TO_PASS": []}), flaky=("a", "b"))

    prepared = options(tmp_path, given, with_images=False)
    first = await prepare(prepared, admit=admit)
    assert (first.instances, first.complete, first.admitted) == (1, False, True)
    with (tmp_path / "out/admission.jsonl").open("a") as file:
        file.write('{"key": "cut by a cra')
    second = await prepare(prepared, admit=admit)
    assert second.complete
    assert asked == [f"pallets__flask-{n}" for n in (0, 1, 2, 2)]
    assert second.rejected == {"not admitted": 2}
    assert second.tests_left_out == first.tests_left_out == 2
    assert [row.PASS_TO_PASS for row in read_rows(tmp_path / "out/rows.jsonl")] == [[]]
    details = [one["detail"] for one in lines(tmp_path / "out/rejected.jsonl")]
    assert details == ["it is wrong", "it cannot be graded: it is gone"]


async def test_offline_instances_are_prepared_by_the_same_command(tmp_path: Path) -> None:
    manifest = await prepare(Options("offline", tmp_path / "out", limit=1))
    [row] = read_rows(tmp_path / "out/rows.jsonl")
    assert row.environment.archive is not None
    assert manifest.source == "source releases"
    assert manifest.images == {}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "recipes.swebench.prepare", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.processes
def test_the_command_prepares_rows_and_names_a_missing_file(tmp_path: Path) -> None:
    given = written(tmp_path, numbered(1), numbered(2, patch=""))
    common = ["--dataset", "verified", "--output", str(tmp_path / "out")]
    common += ["--no-images", "--no-admit"]
    done = command(*common, "--from", str(given))
    assert done.returncode == 0, done.stderr
    assert "rejected: 1" in done.stdout
    assert len(read_rows(tmp_path / "out/rows.jsonl")) == 1
    columns = command(*common, "--from", str(given), "--column", "image==me/mine:1", "id=version")
    assert columns.returncode == 0, columns.stderr
    [row] = read_rows(tmp_path / "out/rows.jsonl")
    assert (row.instance_id, row.image) == ("2.3", "me/mine:1")
    manifest = Manifest.model_validate_json((tmp_path / "out/manifest.json").read_text())
    assert manifest.columns == {"image": "=me/mine:1", "id": "version"}
    unknown = command(*common, "--from", str(given), "--column", "imag=x")
    assert unknown.returncode == 2
    assert "column: imag=x is not NAME=COLUMN with a name of id, problem, patch" in unknown.stderr
    failed = command(*common, "--from", str(tmp_path / "absent"))
    assert failed.returncode == 2
    assert failed.stderr.startswith("prorl: from: there is no ")
