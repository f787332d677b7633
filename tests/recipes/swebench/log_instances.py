"""Instances with a test command of their own: a real bug of Django, and a project of two functions
that sympy's runner tests."""

import compileall
import functools
import py_compile
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from prorl_service.agents.swe.data import SweEnvironment
from prorl_service.sandbox.archives import store_archive
from recipes.swebench import offline
from recipes.swebench.rows import SweInstance

ACTIVATE = f"export PATH={offline.ENVIRONMENT}/bin:$PATH PYTHONPATH={offline.REPOSITORY}"

DJANGO = ("4.2.10", "4.2.11")
DJANGO_FIX = "django/contrib/humanize/templatetags/humanize.py"
DJANGO_TESTS = "tests/humanize_tests/tests.py"
DJANGO_NEEDED = re.compile(
    r"django/(?!contrib/(?!humanize)\w+/(locale|static)/)"
    r"|tests/(humanize_tests/|templates/|(runtests|test_sqlite|urls)\.py)"
)
DJANGO_NEEDS = ("asgiref==3.13.0", "sqlparse==0.6.1")
DJANGO_COMMAND = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
DJANGO_F2P = ["test_intcomma (humanize_tests.tests.HumanizeTests.test_intcomma)"]
DJANGO_P2P = [
    "test_apnumber (humanize_tests.tests.HumanizeTests.test_apnumber)",
    "test_intword (humanize_tests.tests.HumanizeTests.test_intword)",
    "test_ordinal (humanize_tests.tests.HumanizeTests.test_ordinal)",
    "Allow html in output on i18n strings",
    "#23340 -- Verify the documented behavior of humanize.naturaltime.",
]

SYMPY_FIX = "calc/__init__.py"
SYMPY_TESTS = "calc/tests/test_calc.py"
SYMPY_PROJECT = {
    SYMPY_FIX: "def half(x):\n    return x // 2\n\n\ndef twice(x):\n    return x * 2\n",
    SYMPY_TESTS: """\
from calc import half, twice


def test_twice():
    assert twice(1) == 2


def test_last():
    assert half(2) == 1
""",
    # Sympy's bin/test, for files of another project.
    "bin/test": """\
#!/usr/bin/env python
import os
import sys

from sympy.testing.runtests import PyTestReporter, SymPyTests

reporter = PyTestReporter(verbose=True, colors=False)
tests = SymPyTests(reporter)
reporter.root_dir(os.getcwd())
tests._testfiles.extend(os.path.abspath(path) for path in sys.argv[1:])
sys.exit(not tests.test(sort=True))
""",
}
SYMPY_NEW_TESTS = """\
from calc import half, twice


def test_half():
    assert half(3) == 1.5


def test_twice():
    assert twice(1) == 2


def test_last():
    assert half(2) == 1
"""


@functools.cache
def django() -> SweInstance:
    """Returns an instance of one Django fix: one changed file, with the tests of its release."""

    def unpack(repository: Path, fixed: Path) -> None:
        _unpack(DJANGO[0], repository, DJANGO_NEEDED)
        _unpack(DJANGO[1], fixed, re.compile(f"{DJANGO_FIX}|{DJANGO_TESTS}"))

    def install(site: Path) -> None:
        offline._pip("install", "--no-compile", "--target", str(site), *DJANGO_NEEDS)

    return _instance(
        f"django-{DJANGO[0]}",
        unpack,
        install,
        changed=(DJANGO_FIX, DJANGO_TESTS),
        tests=(DJANGO_F2P, DJANGO_P2P),
        run=(f"{DJANGO_COMMAND} humanize_tests.tests", "parse_log_django"),
    )


@functools.cache
def calc() -> SweInstance:
    def unpack(repository: Path, fixed: Path) -> None:
        for target in (repository, fixed):
            for name, text in SYMPY_PROJECT.items():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_text(text)
        (repository / "bin/test").chmod(0o755)
        (fixed / SYMPY_FIX).write_text(SYMPY_PROJECT[SYMPY_FIX].replace("//", "/"))
        (fixed / SYMPY_TESTS).write_text(SYMPY_NEW_TESTS)

    def install(site: Path) -> None:
        for package in ("sympy", "mpmath"):
            spec = find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            ignored = shutil.ignore_patterns("__pycache__", "tests", "benchmarks")
            shutil.copytree(Path(spec.origin).parent, site / package, ignore=ignored)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH  # file times are not kept
        compileall.compile_dir(site, quiet=1, invalidation_mode=unchecked)

    return _instance(
        "calc-1",
        unpack,
        install,
        changed=(SYMPY_FIX, SYMPY_TESTS),
        tests=(["test_half"], ["test_twice"]),
        run=(f"bin/test {SYMPY_TESTS}", "parse_log_sympy"),
    )


def _instance(
    instance_id: str,
    unpack: Callable[[Path, Path], None],
    install: Callable[[Path], None],
    *,
    changed: tuple[str, str],
    tests: tuple[list[str], list[str]],
    run: tuple[str, str],
) -> SweInstance:
    with tempfile.TemporaryDirectory() as temporary:
        tree, compared = Path(temporary), Path(temporary, "compared")
        repository, fixed = tree / "repository", tree / "fixed"
        unpack(repository, fixed)
        offline._git(repository, "init", "-q", "-b", "main")
        offline._git(repository, "add", "-A", "-f")
        offline._git(repository, "commit", "-q", "-m", instance_id)
        shutil.copytree(repository, compared, symlinks=True)
        patch, test_patch = (offline._difference(compared, fixed, [file]) for file in changed)
        (tree / "environment").mkdir()
        offline._programs(tree / "environment/bin")
        install(tree / "environment/site")
        archive = store_archive(offline._tar(tree, ("repository", "environment")))
        commit = offline._git(repository, "rev-parse", "HEAD").strip()
    return SweInstance(
        instance_id=instance_id,
        repo=instance_id,
        version="",
        base_commit=commit,
        problem_statement="See the tests.",
        patch=patch,
        test_patch=test_patch,
        FAIL_TO_PASS=tests[0],
        PASS_TO_PASS=tests[1],
        environment=SweEnvironment(
            archive=archive,
            unpack_at=offline.WORKSPACE,
            repository=offline.REPOSITORY,
            activate=ACTIVATE,
            test_command=run[0],
            log_parser=run[1],
        ),
    )


def fetch_django() -> None:
    for version in DJANGO:
        _source(version)


def _source(version: str) -> Path:
    return offline._source("Django", version, offline.default_directory())


def _unpack(version: str, target: Path, wanted: re.Pattern[str]) -> None:
    """Extracts the wanted files of a Django release, which has ten thousand."""
    with tarfile.open(_source(version)) as archive:
        for member in archive:
            member.name = member.name.partition("/")[2]
            if wanted.match(member.name):
                archive.extract(member, target, filter="data")
