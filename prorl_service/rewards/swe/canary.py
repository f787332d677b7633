"""Canaries: the tests themselves, changed so that they must fail.

The tests run twice, each time in a sandbox of its own. Every test to be fixed is as it is in one
run and must fail in the other, under its own name and in its own place. A few tests that passed
before are changed as well, others in each run, so that both runs have tests of both kinds: a patch
that decides once for a whole process is wrong in one of them. Failures are where and how real tests
could fail (`canary_failures`). Pure; works on the data set's own test files only.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from prorl_service.rewards.swe.canary_failures import IN_THE_MIDDLE, Writer
from prorl_service.rewards.swe.source import Function, Source

OF_UNITTEST = re.compile(r"\w+ \([\w.]+\)")
"""Form of unittest's ids."""

BESIDE = 4
"""Maximum tests of each run that are changed although they are not to be fixed."""


class Candidates(NamedTuple):
    """Tests that can be changed, as `file::Class::function`, and the text of their files."""

    sources: Mapping[str, str]
    fixed: Sequence[str]
    """Tests to be fixed."""
    kept: Sequence[str]
    """Tests that passed before."""


@dataclass(frozen=True, slots=True)
class Version:
    """The files of the tests in one run."""

    files: Mapping[str, str]
    changed: Mapping[str, str]
    """Description by test, as `file::Class::function`, of all tests that must fail."""


def versions(tests: Candidates, random: Random) -> tuple[Version, Version]:
    """Returns the files for two runs: nearly all tests are as they are in the first, the tests to
    be fixed are changed in the second."""
    parsed = {file: Source.parsed(text) for file, text in tests.sources.items()}
    fixed = [test for test in tests.fixed if all(map(str.isidentifier, test.split("::")[1:]))]
    kept = _alone([test for test in tests.kept if test not in tests.fixed], parsed)
    first, second = _drawn(fixed, kept, random)
    maker = _Maker(tests.sources, parsed, random)
    return maker.version(first, ()), maker.version(second, fixed)


def means(id_: str, test: str, description: str) -> bool:
    """Returns whether an id of any runner means the test, which is `file::Class::function`."""
    if id_ == description:
        return True
    base, parts = id_.partition("[")[0], test.split("::")
    if OF_UNITTEST.fullmatch(base) and len(parts) < 3:
        return False
    if "::" in base:
        return base == test or test.endswith(f"/{base}") or base.endswith(f"/{test}")
    return set(re.findall(r"\w+", base)).issuperset(parts[1:])


def tests_meant(sources: Mapping[str, str], ids: Collection[str]) -> list[str]:
    """Returns the tests of these files that ids of any runner mean, as `file::Class::function`."""
    return _tests_by_likeness(sources, ids)[2]


def likely_tests(sources: Mapping[str, str], ids: Collection[str]) -> list[str]:
    """Returns the tests that ids mean, else those of the same name (which a class may inherit),
    else all tests."""
    found = _tests_by_likeness(sources, ids)
    return found[max(found, default=0)]


def _tests_by_likeness(sources: Mapping[str, str], ids: Collection[str]) -> dict[int, list[str]]:
    by_word: dict[str, list[str]] = defaultdict(list)
    for id_ in ids:
        for word in set(re.findall(r"\w+", id_)):
            by_word[word].append(id_)
    found: dict[int, list[str]] = defaultdict(list)
    for file, text in sources.items():
        for names, function in _tests(Source.parsed(text)):
            test, alike = "::".join([file, *names]), by_word[names[-1]]
            description = _description(function)
            is_meant = description in ids or any(means(id_, test, "") for id_ in alike)
            found[2 if is_meant else int(bool(alike))].append(test)
    return found


def _drawn(
    fixed: Sequence[str], kept: Sequence[str], random: Random
) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the tests to change in each run. No fewer in the second: some test must fail there
    in every place of the order in which a test to be fixed can fail in the first."""
    if kept:
        beside = random.sample(kept, min(len(kept), 2 * BESIDE))
        half = max(1, len(beside) // 2)
        return beside[:half], [*fixed, *beside[half:]]
    first = random.sample(fixed, min(len(fixed) // 2, BESIDE))
    return first, [test for test in fixed if test not in first]


@dataclass(frozen=True, slots=True)
class _Maker:
    sources: Mapping[str, str]
    parsed: Mapping[str, Source | None]
    random: Random

    def version(self, tests: Sequence[str], in_the_middle: Collection[str]) -> Version:
        """Changes these tests. `in_the_middle`: those that may fail before they have cleaned up,
        where that cannot make a test fail that counts in this run."""
        files = dict(self.sources)
        used: Counter[str] = Counter()
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in self.random.sample(tests, len(tests)):
            by_file[test.partition("::")[0]].append(test)
        for file, several in by_file.items():
            files[file] = self._changed(file, several, in_the_middle, used)
        return Version(files, {test: _described(test, self.parsed) for test in tests})

    def _changed(
        self, file: str, tests: Sequence[str], in_the_middle: Collection[str], used: Counter[str]
    ) -> str:
        """Returns the file with these tests changed. Each fails in the way that is `used` least."""
        source, edits, replaced = self.parsed[file], [], []
        for test in tests:
            names = test.split("::")[1:]
            function = source.find(names) if source else None
            if source is None or function is None:  # for another version of Python, or inherited
                replaced.append(_replaced(names, self.random))
                continue
            writer = Writer(source, self.random)
            possible = writer.failures(function, in_the_middle=test in in_the_middle)
            way = self._least(used, possible)
            used[way] += 1
            edits += possible[way]
        changed = source.edited(edits) if source else self.sources[file]
        return changed if not replaced else "\n\n\n".join([changed.rstrip(), *replaced]) + "\n"

    def _least(self, used: Counter[str], ways: Collection[str]) -> str:
        return min(ways, key=lambda way: (used[way], way != IN_THE_MIDDLE, self.random.random()))


def _replaced(names: Sequence[str], random: Random) -> str:
    """Returns code for the file's end that replaces a test whose source is unknown."""
    number = random.randint(2, 9)
    if len(names) > 1:
        return f"{'.'.join(names)} = lambda self: [][{number}]"
    return f"def {names[0]}():\n    assert {number} == {random.randint(10, 40)}"


def _alone(tests: Sequence[str], parsed: Mapping[str, Source | None]) -> list[str]:
    """Returns the tests whose change can be told from those of others: they have a source of their
    own, no other test has their name, and no class inherits them. If there are not two, also those
    that the file's own code adds to a class."""
    known = [source for source in parsed.values() if source]
    alike = Counter(names[-1] for one in known for names, _ in _tests(one))
    bases = {
        re.split(r"\W", ast.unparse(base))[-1]
        for one in known
        for node in one.tree.body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    written, added = [], []
    for test in tests:
        file, *names = test.split("::")
        source = parsed[file]
        if source is None or not bases.isdisjoint(names[:-1]):
            continue
        if source.find(names) and alike[names[-1]] == 1:
            written.append(test)
        elif len(names) > 1 and not alike[names[-1]] and all(map(str.isidentifier, names)):
            added.append(test)
    return written if len(written) > 1 else [*written, *added]


def _described(test: str, parsed: Mapping[str, Source | None]) -> str:
    file, *names = test.split("::")
    source = parsed[file]
    function = source.find(names) if source else None
    return _description(function) if function else ""


def _description(function: Function) -> str:
    return (ast.get_docstring(function) or "").partition("\n")[0]


def _tests(source: Source | None) -> Iterator[tuple[list[str], Function]]:
    for node in source.tree.body if source else ():
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        for test in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(test, Function) and test.name.startswith("test"):
                yield [*names, test.name], test
