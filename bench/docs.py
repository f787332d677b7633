"""Counts of the documentation: sentences, code blocks, links, routes with examples; and the minutes
from the wheel to a first rollout.

`python -m bench.docs` writes bench/results/docs.json, in five minutes. What must hold is also a
test: tests/docs.
"""

import re
from pathlib import Path

from bench.newcomer import minutes_to_first_rollout
from bench.result import write
from documentation import code_blocks, figures, glossary, links, prose
from documentation.pages import ROOT, in_repository
from prorl_service.server.app import interface

TESTS_OF_EXAMPLES = (
    ROOT / "tests/examples/test_examples.py",
    ROOT / "tests/verl/test_example.py",
)


def headline() -> dict[str, float]:
    readme, *others = prose.written()
    routes = [one for path in interface().openapi()["paths"].values() for one in path.values()]
    return {
        "readme_lines": len((ROOT / readme).read_text(encoding="utf-8").splitlines()),
        "readme_words_per_sentence": round(prose.count([readme]).mean, 1),
        "docs_words_per_sentence": round(prose.count(others).mean, 1),
        "longest_sentence": prose.count([readme, *others]).longest,
        "pages": len(in_repository()),
        "code_blocks": len(code_blocks.code()),
        "code_blocks_run": len(code_blocks.run()),
        "examples_run": sum(map(_is_run, examples())),
        "minutes_wheel_to_first_rollout": round(minutes_to_first_rollout(), 1),
        "broken_links": len(list(links.broken())),
        "unlinked_words": len(list(glossary.unlinked())),
        "quotations": len(list(figures.quotations())),
        "wrong_figures": len(list(figures.wrong())),
        "openapi_routes": len(routes),
        "openapi_routes_with_example": sum(map(_has_examples, routes)),
    }


def examples() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".sh"))


def _is_run(example: Path) -> bool:
    """Returns whether a test names it."""
    named = re.compile(rf'"({example.stem}|examples/{re.escape(example.name)})["\s]')
    return any(named.search(path.read_text()) for path in TESTS_OF_EXAMPLES)


def row(page: Path) -> dict[str, object]:
    count = prose.count([page])
    blocks = [one for one in code_blocks.code() if one.page == page]
    return {
        "page": str(page),
        "sentences": count.sentences,
        "words_per_sentence": round(count.mean, 1),
        "longest": count.longest,
        "code_blocks": len(blocks),
        "code_blocks_run": sum(one.block.marker == "tested" for one in blocks),
    }


def _has_examples(operation: dict[str, object]) -> bool:
    """Returns whether all that a route takes and gives has an example, and its call one too."""
    return "x-codeSamples" in operation and all("example" in one for one in _contents(operation))


def _contents(operation: dict[str, object]) -> list[dict[str, object]]:
    answers = operation["responses"]
    assert isinstance(answers, dict)
    parts = [operation.get("requestBody", {})]
    parts += [answer for status, answer in answers.items() if status.startswith("2")]
    return [
        kind for one in parts if isinstance(one, dict) for kind in one.get("content", {}).values()
    ]


def main() -> None:
    write("docs", [row(page) for page in prose.written()], headline())


if __name__ == "__main__":
    main()
