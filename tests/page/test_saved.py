"""The page as one file: what others wrote cannot act, nothing is loaded, nothing is left out."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from prorl_service.page import files
from prorl_service.page.saved import IMPORT, saved_page

HOSTILE = "</script><script>alert(1)</script><!-- {script} & \u2028 <img src=x onerror=a()>"
PATH = f"/v1/rollouts/{HOSTILE}/text"
ANSWER = json.dumps({"text": HOSTILE}, ensure_ascii=False).encode()


class Page(HTMLParser):
    """Elements of a page, and the text in each kind of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.texts:
            tag, before = self.texts[-1]
            self.texts[-1] = (tag, before + data)

    def handle_endtag(self, tag: str) -> None:
        self.texts.append((f"after {tag}", ""))

    def of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(b"".join(saved_page("<b>Title", {PATH: ANSWER, "/v1/groups": b"{}"})).decode())


def test_hostile_text_stays_text(page: Page) -> None:
    assert [name for name, _ in page.tags if name in {"img", "b"}] == []
    assert page.of("title")[0].strip() == "<b>Title"
    data, _ = page.of("script")
    saved = json.loads(data)
    assert saved == {"title": "<b>Title", "answers": {PATH: {"text": HOSTILE}, "/v1/groups": {}}}


def test_the_policy_allows_the_page_alone(page: Page) -> None:
    [policy] = [
        str(attributes["content"])
        for name, attributes in page.tags
        if name == "meta" and "http-equiv" in attributes
    ]
    _, script = page.of("script")
    [style] = page.of("style")
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_the_page_loads_nothing(page: Page) -> None:
    assert not {"src", "href"} & {key for _, attributes in page.tags for key in attributes}
    assert "url(" not in page.of("style")[0]


def test_every_module_is_in_the_script_before_those_that_import_it(page: Page) -> None:
    _, script = page.of("script")
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    modules = re.findall(r"^const \$(\w+) = \(\(\) => \{$", script, re.MULTILINE)
    names = {file.name.removesuffix(".js") for file in files.STATIC.iterdir() if ".js" in file.name}
    assert {*modules} == names | {"vendor_htm_preact", "vendor_ansi_up"}
    for name in names:
        for match in IMPORT.finditer(files.STATIC.joinpath(f"{name}.js").read_text("utf-8")):
            imported = re.sub(r"\W", "_", match[2].removesuffix(".js"))
            assert modules.index(imported) < modules.index(name)
