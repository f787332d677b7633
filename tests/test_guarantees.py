"""The list of guarantees: each stands alone, and has tests that exist."""

from pathlib import Path

import pytest

from bench.trust.guarantees import Guarantee, counts, existing_tests, guarantees

GUARANTEES = guarantees()


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda one: one.sentence)
def test_each_guarantee_has_tests_that_exist_or_a_reason_why_not(guarantee: Guarantee) -> None:
    assert guarantee.is_tested is not bool(guarantee.missing)
    assert len(set(guarantee.tests)) == len(guarantee.tests)


def test_each_guarantee_is_stated_once_in_one_sentence() -> None:
    sentences = [one.sentence for one in GUARANTEES]
    assert len(set(sentences)) == len(sentences)
    assert all(one.endswith(".") and ". " not in one and "\n" not in one for one in sentences)


def test_only_tests_that_exist_are_counted() -> None:
    misnamed = Guarantee(
        "Misnamed.", (f"tests/{Path(__file__).name}::test_each_guarantee_is_stated",)
    )
    unheld = Guarantee("Unheld.", ())
    twice = Guarantee("Twice.", GUARANTEES[0].tests)
    assert counts([GUARANTEES[0], misnamed, twice, unheld]) == {
        "guarantees": 4,
        "guarantees_tested": 2,
        "tests": len(GUARANTEES[0].tests),
    }


def test_only_functions_of_the_module_are_tests(tmp_path: Path) -> None:
    source = "def test_a(): ...\nasync def test_b(): ...\ndef helper(): ...\nclass C:\n"
    source += "    def test_c(self): ...\n"
    (tmp_path / "test_x.py").write_text(source)
    names = ("test_a", "test_b", "helper", "test_c", "test_d")
    listed = Guarantee("Any.", (*(f"test_x.py::{name}" for name in names), "test_y.py::test_a"))
    assert existing_tests(listed, tmp_path) == ["test_x.py::test_a", "test_x.py::test_b"]
