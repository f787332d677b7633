"""Tests of the repositories of SWE-bench and SWE-Gym: commands, log parsers, exports.

Newer rows of SWE-bench have their own, in `eval_script` and `log_parser`; the table here is for
the others. SWE-bench's part is that of swebench 4.1.0 (MIT), the last version that has one, and
SWE-Gym's that of its fork of the harness. Both conflict with an installed swebench 5, whose parsers
are named here. Runs nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipes.common.data.fields import Row

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
NOT_TESTS = (
    *(".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml"),
)
"""Suffixes of files that SWE-bench does not pass to the test command."""


@dataclass(frozen=True, slots=True)
class Testing:
    """Shell commands, in this order: `exports`, `setup`, `install`, `command`.

    `install` is what the harness repeats before each run of the tests.
    """

    __test__ = False  # for pytest

    command: str = "pytest -rA"
    log_parser: str = "parse_log_pytest"
    install: str = "python -m pip install -e ."
    exports: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


def of_script(row: Row, script: str, log_parser: str) -> Testing:
    """Reads an evaluation script. Raises `RowError` if it has another form."""
    script = re.sub(r"<<'(\w+)'\n.*?\n\1\n", "\n", script, flags=re.DOTALL)
    before, start, rest = script.partition(f": '{START}'\n")
    command, end, _ = rest.partition(f": '{END}'")
    if not start or not end or not command.strip():
        raise row.error("script has no test command between its markers")
    prepared = [line for line in before.splitlines() if not _COMMON.match(line)]
    return Testing(
        command=command.strip(),
        log_parser=log_parser,
        install="; ".join(line for line in prepared if _INSTALL.search(line)),
        exports=tuple(line for line in prepared if line.startswith("export ")),
        setup=tuple(
            line
            for line in prepared
            if not line.startswith("export ") and not _INSTALL.search(line)
        ),
    )


_COMMON = re.compile(r"\s*$|#|set -|cd |git |source |conda activate |: ")
_INSTALL = re.compile(r"\bpip install\b|\bsetup\.py\b")


def of_table(row: Row, repo: str, version: str, test_patch: str) -> Testing | None:
    """Looks up repository and version. Raises `RowError` for tests that cannot be used."""
    if repo == "python/mypy" and re.search(r"^.\[case ", test_patch, re.MULTILINE):
        raise row.error("its tests are cases in data files: no canary can be put among them")
    for pattern, testing in _REPOSITORIES.get(repo.lower(), ()):
        if re.fullmatch(pattern, version):
            return replace(testing, command=_with_tests(testing.command, repo, test_patch))
    return None


def _with_tests(command: str, repo: str, test_patch: str) -> str:
    files = named_files(test_patch)
    if repo == "django/django":
        files = [
            file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in files
        ]
    return " ".join([command, *files])


def named_files(test_patch: str) -> list[str]:
    """Returns what SWE-bench passes to the test command: the patch's files that may have tests."""
    files = re.findall(r"diff --git a/.* b/(.*)", test_patch)
    return [file for file in files if not file.endswith(NOT_TESTS)]


Entries = Sequence[tuple[str, Testing]]
"""Testing by pattern of versions; the first match counts."""


def _pytest(install: str = "python -m pip install -e .", parser: str = "pytest") -> Entries:
    return [(".*", Testing(log_parser=f"parse_log_{parser}", install=install))]


def _django() -> Entries:
    command = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
    old = Testing(command, "parse_log_django", "python setup.py install")
    new = replace(old, install="python -m pip install -e .")
    utf8 = ("export LANG=en_US.UTF-8", "export LC_ALL=en_US.UTF-8")
    exports = (*utf8, "export PYTHONIOENCODING=utf8", "export LANGUAGE=en_US:en")
    serial = replace(old, command="./tests/runtests.py --verbosity 2", exports=exports)
    locale = "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen"
    exports3 = (utf8[0], "export LANGUAGE=en_US:en", utf8[1])
    return [
        (r"1\.[456]", old),
        (r"1\.9", serial),
        (r"[12]\..*", replace(old, exports=exports)),
        (r"3\..*", replace(new, exports=exports3, setup=(locale,))),
        (".*", new),
    ]


def _astropy() -> Entries:
    testing = Testing(
        log_parser="parse_log_astropy", install="python -m pip install -e .[test] --verbose"
    )
    options = " -vv -o console_output_style=classic --tb=no"
    return [(r"[01]\..*", replace(testing, command=testing.command + options)), (".*", testing)]


def _matplotlib() -> Entries:
    testing = Testing(log_parser="parse_log_matplotlib")
    develop = 'python -m pip install --no-build-isolation -e ".[dev]"'
    return [
        (r"[12]\..*", replace(testing, install="python setup.py build; python setup.py install")),
        (r"3\.[89]", replace(testing, install=develop)),
        (".*", testing),
    ]


def _seaborn() -> Entries:
    testing = Testing("pytest --no-header -rA", "parse_log_seaborn")
    return [
        (r"0\.11", testing),
        (".*", replace(testing, install="python -m pip install -e .[dev]")),
    ]


_SPHINX = Testing(
    "tox --current-env -epy39 -v --", "parse_log_sphinx", "python -m pip install -e .[test]"
)
_SYMPY = Testing(
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    "parse_log_sympy",
)
_SWE_BENCH: dict[str, Entries] = {
    "astropy/astropy": _astropy(),
    "django/django": _django(),
    "marshmallow-code/marshmallow": _pytest("python -m pip install -e '.[dev]'", "marshmallow"),
    "matplotlib/matplotlib": _matplotlib(),
    "mwaskom/seaborn": _seaborn(),
    "pallets/flask": _pytest(parser="flask"),
    "psf/requests": _pytest("python -m pip install .", "requests"),
    "pvlib/pvlib-python": _pytest("python -m pip install -e .[all]", "pvlib"),
    "pydata/xarray": _pytest(parser="xarray"),
    "pydicom/pydicom": _pytest(parser="pydicom"),
    "pylint-dev/astroid": _pytest(parser="astroid"),
    "pylint-dev/pylint": _pytest(parser="pylint"),
    "pytest-dev/pytest": _pytest(parser="pytest"),
    "pyvista/pyvista": _pytest(parser="pyvista"),
    "scikit-learn/scikit-learn": _pytest(
        "python -m pip install -v --no-use-pep517 --no-build-isolation -e .", "scikit"
    ),
    "sphinx-doc/sphinx": [(".*", _SPHINX)],
    "sqlfluff/sqlfluff": _pytest(parser="sqlfluff"),
    "sympy/sympy": [(".*", _SYMPY)],
}


def _gym(command: str, parser: str = "pytest", *exports: str) -> Entries:
    """Installs nothing: what is installed is the repository itself, and pip needs a network."""
    return [(".*", Testing(command, f"parse_log_{parser}", "", exports))]


_SWE_GYM: dict[str, Entries] = {
    "bokeh/bokeh": _gym("pytest -rA -n0"),
    "conan-io/conan": _gym("pytest -n0 -rA", "pytest", "export PYTHONPATH=${PYTHONPATH:-}:$(pwd)"),
    "dask/dask": _gym("pytest -n0 -rA --color=no"),
    "facebookresearch/hydra": _gym("pytest -rA --tb=long"),
    "getmoto/moto": _gym("pytest -n0 -rA"),
    "iterative/dvc": _gym("pytest -rA"),
    "modin-project/modin": _gym("pytest -n0 -rA"),
    "pandas-dev/pandas": _gym("pytest -rA --tb=long"),
    "project-monai/monai": _gym("pytest -rA"),
    "pydantic/pydantic": _gym(
        "pytest -rA --tb=short -vv -o console_output_style=classic --no-header", "pytest_v2"
    ),
    "python/mypy": _gym("pytest -n0 -rA"),
}

_REPOSITORIES = _SWE_BENCH | _SWE_GYM
