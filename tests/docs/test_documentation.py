"""The pages hold together: code, figures, and what is generated. `test_site` checks their links."""

import re
from pathlib import Path

import pytest

from prorl_service.cli.main import app
from prorl_service.schemas import RolloutState
from scripts.documentation import code_blocks, figures, pages
from scripts.documentation.reference.__main__ import DIRECTORY, PAGES

IMAGES = pages.ROOT / pages.DOCS / "images"


def test_each_page_is_in_the_navigation_once() -> None:
    listed = [pages.place_in_repository(one.path) for one in pages.navigation()]
    assert len(listed) == len(set(listed))
    made = {f"docs/{name}" for name in pages.MADE_FOR_THE_SITE}
    needed = {"CHANGELOG.md", "CONTRIBUTING.md", "recipes/swebench/README.md"}
    needed |= {str(path) for path in pages.in_repository()}
    assert set(listed) == needed | made


def test_each_code_block_is_run_or_says_why_not() -> None:
    assert list(code_blocks.problems()) == []


def test_each_printed_command_is_one_that_prorl_takes() -> None:
    for place, words in code_blocks.commands():
        given = [word for word in words if word != "..."]
        if "--config" in given:  # of all commands, and taken before them
            at = given.index("--config")
            del given[at : at + 2]
        try:
            app.parse_args(given, exit_on_error=False, print_error=False)
        except Exception as error:
            pytest.fail(f"{place}: prorl {' '.join(words)}: {error}")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", PAGES)
def test_the_generated_reference_is_up_to_date(name: str) -> None:
    text = (DIRECTORY / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run python -m scripts.documentation.reference"


@pytest.mark.parametrize("picture", sorted(IMAGES.glob("*.svg")), ids=lambda one: one.name)
def test_pictures_are_legible_and_load_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert min(map(int, re.findall(r"font-size:(\d+)px", text))) >= 12
    assert not re.search(r"href=|src=|url\((?!#)|@import", text)


def test_all_states_of_a_rollout_are_drawn() -> None:
    text = (IMAGES / "states.svg").read_text(encoding="utf-8")
    assert set(RolloutState) <= set(re.findall(r">(\w+)</text>", text))


def test_figures_are_those_of_the_measurements() -> None:
    assert list(figures.wrong()) == []
    assert list(figures.unchecked()) == []


@pytest.mark.parametrize(
    ("number", "value", "is_quoted"),
    [
        ("0.94", 0.9412, True),
        ("94", 0.9412, True),
        ("95", 0.9412, False),
        ("5.2e-05", 5.22e-5, True),
    ],
)
def test_a_figure_is_a_value_rounded(number: str, value: float, is_quoted: bool) -> None:
    assert figures.is_quoted(number, [value]) is is_quoted
