"""Builds the offline instances: real bugs of real packages, from two consecutive source releases.

`python -m recipes.swebench.offline` writes offline.jsonl; instances that were built are kept. pip
gets the sources and the packages that tests need from the index it is configured for; afterwards
nothing needs a network. Python in the sandboxes is the service's own: build with that one.

The releases are public: use these instances to test the pipeline, not to claim what a model can do.
Nothing is graded here.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import BaseModel, ConfigDict
from rich.console import Console

from prorl_service.agents.swe.data import SweEnvironment
from prorl_service.cli.program import run
from prorl_service.rewards.swe.patch import TEST_FILE
from prorl_service.sandbox.archives import has_archive, store_archive
from prorl_service.sandbox.cache import cache_root
from prorl_service.utils.files import publish
from recipes.swebench.rows import SweInstance, unusable, write_rows

INSTANCES = Path(__file__).with_name("instances.json")
TEST_TOOLS = ("pytest==8.3.5", "pytest-timeout==2.3.1")
PIP_TIMEOUT_S = 300
AT_ONCE = 4
BUILD_VERSION = "2"
"""Version of how instances are built: change it with that."""

WORKSPACE = "/workspace"
REPOSITORY = f"{WORKSPACE}/repository"
ENVIRONMENT = f"{WORKSPACE}/environment"
PYTHON = """\
#!/bin/sh
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$PYTHONPATH${PYTHONPATH:+:}%s/site"
exec /.prorl/bin/python3 "$@"
"""

# Files that the index adds to a source release, or that differ with each build.
NOT_SOURCE = re.compile(r"(^|/)(PKG-INFO|[^/]*\.egg-info|__pycache__|\.git)(/|$)")
DATE = "2020-01-01T00:00:00+00:00"


Unpack = Callable[[Path, Path], None]
"""Function that writes the repository's tree and that of the fix."""


class Release(BaseModel):
    """One entry of instances.json. `base_commit` is that of the first build of the data, whose
    author and date are not known: the row's differs."""

    model_config = ConfigDict(extra="forbid")

    instance_id: str
    repo: str
    version: str
    fixed_version: str
    license: str
    base_commit: str
    FAIL_TO_PASS: list[str]
    PASS_TO_PASS: list[str]
    expected_xfails: list[str] = []
    test_files: list[str]
    src_root: str
    deps: list[str]
    gold_files: list[str]
    gold_lines: int
    args: list[str]
    what_is_wrong: str


def releases() -> list[Release]:
    return [Release.model_validate(entry) for entry in json.loads(INSTANCES.read_text())]


def build_all(
    directory: Path, *, only: Sequence[str] = (), progress: Callable[[str], None] = print
) -> list[SweInstance]:
    """Returns the rows of all instances, or of those in `only`. `directory` keeps all that was
    fetched and built."""
    chosen = [release for release in releases() if not only or release.instance_id in only]
    rows = {release.instance_id: _kept(release, directory) for release in chosen}
    missing = [release for release in chosen if rows[release.instance_id] is None]
    _fetch(missing, directory, progress)
    for number, release in enumerate(missing, 1):
        progress(f"building {number}/{len(missing)} {release.instance_id}")
        row = rows[release.instance_id] = build(release, directory)
        _made(directory / "rows")
        _row_file(release, directory).write_text(row.model_dump_json())
    return [row for row in rows.values() if row is not None]


def _fetch(chosen: Sequence[Release], directory: Path, progress: Callable[[str], None]) -> None:
    """Fetches all that `build` takes from pip, several at a time: pip waits more than it works."""
    sources = {
        (release.repo, version): partial(_source, release.repo, version, directory)
        for release in chosen
        for version in (release.version, release.fixed_version)
    }
    environments = {
        tuple(release.deps): partial(_environment, release, directory) for release in chosen
    }
    work = [*sources.values(), *environments.values()]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for number, _ in enumerate(threads.map(lambda fetch: fetch(), work), 1):
            progress(f"fetched {number}/{len(work)}")


def build(release: Release, directory: Path, unpack: Unpack | None = None) -> SweInstance:
    """Builds an instance. `unpack` puts the two trees in place; without it they are source releases
    from pip.

    Raises `RuntimeError` if something cannot be fetched, `ValueError` if nothing can be graded.
    """
    with tempfile.TemporaryDirectory(dir=_made(directory / "tmp")) as temporary:
        tree = Path(temporary)
        repository, fixed = tree / "repository", tree / "fixed"
        (unpack or partial(_unpack_releases, release, directory))(repository, fixed)
        _git(repository, "init", "-q", "-b", "main")
        _git(repository, "add", "-A", "-f")
        _git(repository, "commit", "-q", "-m", f"{release.repo} {release.version}")
        compared = tree / "compared"  # a copy: git would keep the answer
        shutil.copytree(repository, compared, symlinks=True)
        patch = _difference(compared, fixed, release.gold_files)
        support = _support_files(compared, fixed, release.test_files)
        test_patch = _difference(compared, fixed, [*release.test_files, *support])
        shutil.copytree(_environment(release, directory), tree / "environment")
        _add_metadata(release, tree / "environment" / "site")
        row = _row(release, tree, patch, test_patch)
        if reason := unusable(row):
            raise ValueError(f"{release.instance_id}: {reason}")
        return row


def _unpack_releases(release: Release, directory: Path, repository: Path, fixed: Path) -> None:
    _unpack(_source(release.repo, release.version, directory), repository)
    _unpack(_source(release.repo, release.fixed_version, directory), fixed)


def _row(release: Release, tree: Path, patch: str, test_patch: str) -> SweInstance:
    commit = _git(tree / "repository", "rev-parse", "HEAD").strip()
    environment = SweEnvironment(
        archive=store_archive(_tar(tree, ("repository", "environment"))),
        unpack_at=WORKSPACE,
        repository=REPOSITORY,
        activate=f"export PATH={ENVIRONMENT}/bin:$PATH"
        f" PYTHONPATH={(Path(REPOSITORY) / release.src_root).as_posix()}",
        python=f"env -u PYTHONPATH {ENVIRONMENT}/bin/python",
        import_paths=[release.src_root],
        test_files=release.test_files,
        pytest_arguments=release.args or ["--timeout", "60"],
        pytest_plugins=["pytest_timeout"],
    )
    return SweInstance(
        instance_id=release.instance_id,
        repo=release.repo,
        version=release.version,
        base_commit=commit,
        problem_statement=f"In {release.repo} {release.version}: {release.what_is_wrong}.",
        patch=patch,
        test_patch=test_patch,
        FAIL_TO_PASS=release.FAIL_TO_PASS,
        PASS_TO_PASS=release.PASS_TO_PASS,
        expected_xfails=release.expected_xfails,
        environment=environment,
        license=release.license,
    )


def _kept(release: Release, directory: Path) -> SweInstance | None:
    path = _row_file(release, directory)
    if not path.exists():
        return None
    row = SweInstance.model_validate_json(path.read_text())
    archive = row.environment.archive
    return row if archive is not None and has_archive(archive) else None


def _row_file(release: Release, directory: Path) -> Path:
    return directory / "rows" / f"{release.instance_id}-{BUILD_VERSION}.json"


def _source(package: str, version: str, directory: Path) -> Path:
    """Returns the source release, fetched once."""
    target = directory / "sources" / f"{package}-{version}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_made(directory / "tmp")) as fetched:
            options = ["--no-deps", "--no-binary", package, "--dest", fetched]
            _pip("download", *options, f"{package}=={version}")
            _made(target.parent)
            publish(Path(fetched), target)
            os.makedirs(fetched, exist_ok=True)  # its owner removes it
    return next(target.glob("*.tar.gz"))


def _environment(release: Release, directory: Path) -> Path:
    """Returns the directory of pytest and the tests' requirements, as `bin` and `site`, shared by
    instances with the same ones."""
    needed = (*TEST_TOOLS, *release.deps)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "_".join(needed))
    target = (
        directory / "environments" / f"py{sys.version_info.major}{sys.version_info.minor}-{name}"
    )
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_made(directory / "tmp")) as made:
            site = Path(made, "site")
            _pip("install", "--no-compile", "--target", str(site), *needed)
            shutil.rmtree(site / "bin", ignore_errors=True)
            _programs(Path(made, "bin"))
            _made(target.parent)
            publish(Path(made), target)
            os.makedirs(made, exist_ok=True)
    return target


def _programs(directory: Path) -> None:
    directory.mkdir()
    for name in ("python", "python3"):
        (directory / name).write_text(PYTHON % ENVIRONMENT)
    (directory / "pytest").write_text(f'#!/bin/sh\nexec {ENVIRONMENT}/bin/python -m pytest "$@"\n')
    for program in directory.iterdir():
        program.chmod(0o755)


def _add_metadata(release: Release, site: Path) -> None:
    """Adds metadata for packages that ask importlib.metadata for their own version."""
    target = site / f"{release.repo.replace('-', '_')}-{release.version}.dist-info"
    target.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {release.repo}\nVersion: {release.version}\n"
    (target / "METADATA").write_text(metadata)


def _pip(*arguments: str) -> None:
    quiet = ["--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", arguments[0], *quiet, *arguments[1:]]
    done = subprocess.run(
        command, timeout=PIP_TIMEOUT_S, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)} failed: {done.stderr[-2000:]}")


def _unpack(source: Path, target: Path) -> None:
    """Unpacks a release without its first directory and without files that are not source."""
    with tarfile.open(source) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if name and not NOT_SOURCE.search(name):
                member.name = name
                archive.extract(member, target, filter="data")


def _support_files(repository: Path, fixed: Path, test_files: Sequence[str]) -> list[str]:
    """Returns the files in the tests' directories, of either release, that are not tests: a data
    set's test patch brings those too. Tests outside such directories bring only themselves."""
    directories = {one for file in test_files if (one := _directory_of_tests(Path(file)))}
    files = {
        path.relative_to(tree).as_posix()
        for tree in (repository, fixed)
        for directory in directories
        for path in (tree / directory).rglob("*")
        if path.is_file() and not TEST_FILE.fullmatch(path.name)
    }
    return sorted(files)


def _directory_of_tests(file: Path) -> Path | None:
    """Returns the nearest parent named `test` or `tests`: never a whole package with tests
    inside."""
    return next((one for one in file.parents if one.name in ("test", "tests")), None)


def _difference(repository: Path, fixed: Path, files: Sequence[str]) -> str:
    """Returns the patch that makes these files of the repository those of the other release."""
    for file in files:
        target = repository / file
        target.unlink(missing_ok=True)
        if (fixed / file).exists():
            _made(target.parent)
            shutil.copy(fixed / file, target)
    _git(repository, "add", "-A", "-f", "--", *files)
    patch = _git(repository, "diff", "--cached", "--binary", "--full-index", "--no-renames", "HEAD")
    _git(repository, "reset", "-q", "--hard")
    return patch


def _git(repository: Path, *arguments: str) -> str:
    who = {"NAME": "offline", "EMAIL": "offline@localhost", "DATE": DATE}
    stamps = {f"GIT_{role}_{key}": who[key] for role in ("AUTHOR", "COMMITTER") for key in who}
    neutral = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    settings = ["-c", "core.autocrlf=false", "-c", "safe.directory=*", "-c", "core.quotePath=false"]
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=repository,
        env={**os.environ, **stamps, **neutral},
        check=True,
        stdout=subprocess.PIPE,
    )
    return done.stdout.decode()


def _tar(tree: Path, names: Sequence[str]) -> bytes:
    """Packs trees: the same files give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(
            path for name in names for path in [tree / name, *tree.glob(f"{name}/**/*")]
        ):
            name = path.relative_to(tree).as_posix()
            if not re.fullmatch(r"repository/\.git/(index|hooks(/.*)?|logs(/.*)?|ORIG_HEAD)", name):
                archive.add(path, name, recursive=False, filter=_neutral)
    return packed.getvalue()


def _neutral(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def default_directory() -> Path:
    return cache_root() / "swe-offline"


def main(
    output: Annotated[Path, Parameter(help="File for the rows.")] = Path("offline.jsonl"),
    directory: Annotated[Path | None, Parameter(help="Keeps files fetched and built.")] = None,
    only: Annotated[list[str] | None, Parameter(help="Ids; default: all.")] = None,
) -> None:
    """Build the offline instances and write their rows."""
    console = Console()
    rows = build_all(directory or default_directory(), only=only or (), progress=console.print)
    write_rows(output, rows)
    console.print(f"{len(rows)} instances in {output}")


if __name__ == "__main__":
    run(main)
