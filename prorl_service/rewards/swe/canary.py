"""Canaries: tests that must fail, put among those that a patch should make pass.

A patch that makes the runner report success for anything reports it for canaries too. A canary is a
copy of a real test under a plausible name. Each file gets several, which fail where and how its
real tests could (`canary_failures`): a patch that hides one kind of failure, or hides it only after
code of the package has run, also hides a canary's. Pure; works on the data set's own test files
only.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from random import Random

from prorl_service.rewards.swe.canary_failures import Way, Writer, ways_to_fail
from prorl_service.rewards.swe.source import Edit, Function, Source, can_be_copied


def with_canaries(text: str, test_ids: Sequence[str], random: Random) -> tuple[str, list[str]]:
    """Returns the file with canaries, and the names of their functions. `test_ids`: its tests."""
    parts = [test_id.partition("[")[0].split("::")[1:] for test_id in test_ids]
    source = Source.parsed(text)
    tests = [test for names in parts if source and (test := source.find(names))]
    if source is None or not tests:  # for another version of Python, or inherited
        name = _new_name(text, parts[0][-1], random)
        return f"{text.rstrip()}\n\n\ndef {name}():\n    {_failing(random)}\n", [name]
    canaries: list[str] = []
    copies = []
    for test, edits in _copies(Writer(source, random), tests, random):
        canaries.append(_new_name(f"{text}{canaries}", test.name, random))
        copies.append((source.end(test), source.copied(test, canaries[-1], edits)))
    for at, copy in sorted(copies, reverse=True):
        gap = "\n" if text[:at].endswith(("\n", "\r")) else "\n\n"
        text = f"{text[:at]}{gap}{copy}{text[at:]}"
    return text, canaries


def likely_tests(sources: Mapping[str, str], ids: Collection[str]) -> list[str]:
    """Returns tests of these files that ids of any runner can mean, as `file::Class::function`.

    They match by class and name or by description, else by name (which a class may inherit), else
    all tests do: a canary can stand next to any test that is run.
    """
    words = [frozenset(re.findall(r"\w+", id_)) for id_ in ids]
    found: dict[int, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for names, function in _tests(source):
            description = (ast.get_docstring(function) or "").partition("\n")[0]
            is_meant = description in ids or any(one.issuperset(names) for one in words)
            likeness = 2 if is_meant else int(any(names[-1] in one for one in words))
            found[likeness].append("::".join([file, *names]))
    return found[max(found, default=0)]


def _copies(
    writer: Writer, tests: Sequence[Function], random: Random
) -> Iterator[tuple[Function, list[Edit]]]:
    """Yields a copy that fails immediately, one for each way in which these tests can fail, and one
    in which code of the package raises."""
    first = random.choice(tests)
    yield first, writer.first(first, random.choice(ways_to_fail(first)))
    whole = [test for test in tests if writer.runs_to_its_end(test)]
    able: dict[Way, list[Function]] = defaultdict(list)
    for test in whole:
        for way in ways_to_fail(test):
            able[way].append(test)
    for way, those in able.items():
        changed = [(test, edits) for test in those if (edits := writer.changed(test, way))]
        test = random.choice(those)
        yield random.choice(changed or [(test, writer.last(test, way))])
    raising = [(test, edits) for test in whole if (edits := writer.of_the_package(test))]
    if raising:
        yield random.choice(raising)


def _tests(text: str) -> Iterator[tuple[list[str], Function]]:
    source = Source.parsed(text)
    for node in source.tree.body if source else ():
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        for test in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(test, Function) and test.name.startswith("test") and can_be_copied(test):
                yield [*names, test.name], test


def _new_name(text: str, name: str, random: Random) -> str:
    words = sorted(set(re.findall(r"[a-z]{3,}", " ".join(re.findall(r"def (test\w*)", text)))))
    while True:
        new = f"{name}_{random.choice([*words, 'again'])}_{random.choice([*words, 'twice'])}"
        if new not in text:
            return new


def _failing(random: Random) -> str:
    return f"assert {random.randint(2, 9)} == {random.randint(10, 40)}"
