"""What moves in another package's source is found, and nothing else is."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.neighbours import Neighbour
from scripts.neighbour_check.hooks import hooks
from scripts.neighbour_check.sources import Sources

NAMES = st.sampled_from(["url", "kwargs", "seed", "version", "group", "source", "metadata"])
LISTS = st.lists(NAMES, unique=True, min_size=1, max_size=4)


def neighbour(**about: object) -> Neighbour:
    known = {"title": "lib", "tested": "", "newest": "1", "by": "this", "modules": ["lib"]}
    return Neighbour.model_validate({"name": "lib", **known, **about})


def broken(ours: str, theirs: str, about: Mapping[str, object] = MappingProxyType({})) -> list[str]:
    """Returns what is broken between the source of a file of ours and of `lib`."""
    with TemporaryDirectory() as directory:
        top = Path(directory)
        for file, text in (("ours/plugins/a.py", ours), ("theirs/lib/__init__.py", theirs)):
            (top / file).parent.mkdir(parents=True)
            (top / file).write_text(text)
        found = hooks(neighbour(**about), top / "ours")
        return [one for hook in found for one in hook(Sources(top / "theirs"))]


@given(taken=LISTS, needed=st.integers(0, 4), given_=LISTS, is_class=st.booleans())
def test_a_call_is_broken_just_when_python_says_so(
    taken: list[str], needed: int, given_: list[str], is_class: bool
) -> None:
    parameters = ", ".join(one if n < needed else f"{one}=0" for n, one in enumerate(taken))
    call = "f(" + ", ".join(f"{one}=1" for one in given_) + ")"
    theirs = f"def f({parameters}): ..."
    if is_class:
        theirs = f"class f:\n    def __init__(self, {parameters}): ..."
    said = broken(f"from lib import f\n{call}\n", theirs)
    space: dict[str, object] = {}
    exec(theirs, space)
    try:
        eval(call, space)
    except TypeError:
        assert said
    else:
        assert said == []


@given(theirs=LISTS, ours=LISTS, has_rest=st.booleans())
def test_an_override_is_broken_just_when_their_call_of_it_is(
    theirs: list[str], ours: list[str], has_rest: bool
) -> None:
    rest = ", **rest" if has_rest else ""
    base = f"class Base:\n    def f(self, *, {', '.join(theirs)}): ...\n"
    derived = f"class Ours(Base):\n    def f(self, *, {', '.join(ours)}{rest}): ...\n"
    said = broken(f"from lib import Base\n{derived}", base)
    space: dict[str, object] = {}
    exec(base + derived, space)
    try:
        eval(f"Ours().f({', '.join(f'{one}=0' for one in theirs)})", space)
    except TypeError:
        assert said
    else:
        assert said == []


@pytest.mark.parametrize(
    ("before", "after", "about", "said"),
    [
        ("def f(): ...", "def g(): ...", {}, "lib:f is gone (plugins/a.py)"),
        ("def f(a): ...", "def f(): ...", {"calls": {"lib:f": ["a"]}}, "lib:f takes no a"),
        ("def f(**a): ...", "class f: ...", {"calls": {"lib:C.f": []}}, "lib:C.f is gone"),
        ("class f: a: int", "class f: b: int", {"fields": {"lib:f": ["a"]}}, "lib:f has no a"),
        ("def f(): a.b", "def f(): a", {"reads": {"x": {"lib:f": ["b"]}}}, "no longer reads b"),
        ("f = '/a'", "f = '/b'", {"routes": {"lib": ["/a"]}}, "lib has no /a"),
        ("f = 1", "f = 1", {"ours": {"plugins/a.py": ["Z"]}}, "plugins/a.py of ours has no Z"),
    ],
)
def test_what_moved_is_named(before: str, after: str, about: dict[str, object], said: str) -> None:
    ours = "from lib import f\n"
    if "lib:C.f" not in said and "ours" not in about:
        assert broken(ours, before, about) == []
    assert any(said in one for one in broken(ours, after, about))


@pytest.mark.processes
def test_an_option_that_a_program_does_not_know_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n[ $2 = --old=x ] && echo unknown flag: $2 >&2\n")
    program.chmod(0o755)
    ours = "OPTIONS = ['--old', 'x', '--kept']\nOTHERS = ['--odd']\n"
    about = {"options": {"plugins/a.py:OPTIONS": [str(program), "exec"]}}
    assert broken(ours, "", about) == [f"{program} exec knows no --old"]


def test_names_are_followed_through_other_modules(tmp_path: Path) -> None:
    for file, text in {
        "lib/__init__.py": "from .deep import *\nfrom lib.deep.er import g as h\n",
        "lib/deep/__init__.py": "from lib.deep.er import f\n",
        "lib/deep/er.py": "def f(a): ...\nclass g:\n    def m(self): ...\nclass Sub(g): ...\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    sources = Sources(tmp_path)
    for name in ("lib:f", "lib:h.m", "lib.deep:f", "lib.deep.er:Sub.m", "lib:deep"):
        assert sources.find(name) is not None, name
    for name in ("lib:g", "lib:h.n", "lib.nowhere:f", "lib.deep.er:f.a"):
        assert sources.find(name) is None, name
    assert isinstance(getattr(sources.find("lib:h"), "node", None), ast.ClassDef)


def faults() -> Iterator[tuple[str, str, str, dict[str, object]]]:
    """Yields the kind of fault, our source at that time, theirs of today, and the table."""
    yield (
        "preflight is given kwargs",
        "from lib import Base\n"
        "class Environment(Base):\n    @classmethod\n    def preflight(cls) -> None: ...\n",
        "class Base:\n    @classmethod\n    def preflight(cls, kwargs=None): ...\n",
        {},
    )
    yield (
        "metadata is property, ours a method",
        "class _Policy:\n    def metadata(self): ...\n    def __iter__(self): ...\n",
        "class WeightSource:\n    @property\n    @abstractmethod\n    def metadata(self): ...\n",
        {"stand_ins": {"plugins/a.py:_Policy": "lib:WeightSource"}},
    )


@pytest.mark.parametrize(("said", "ours", "theirs", "about"), [*faults()])
def test_the_faults_of_769aca4_are_found(
    said: str, ours: str, theirs: str, about: dict[str, object]
) -> None:
    [found] = broken(ours, theirs, about)
    assert said in found
