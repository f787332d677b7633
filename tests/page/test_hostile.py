"""What models and tools write stays text in a real browser: no markup, no script, no live link, no
character that hides or reorders others; and much of it does not stop the page."""

import json
import re

import pytest

from prorl_service.server.view_routes import POLICY
from tests.page.browser import BrowserError, Tab
from tests.page.showcase import HOSTILE, HUGE
from tests.page.visit import show, visible

pytestmark = [pytest.mark.browser, pytest.mark.processes]

VIEWS = ("rollout/special-hostile.0", "compare/special-hostile")
REFUSED = "Content Security Policy"


@pytest.mark.parametrize("view", VIEWS)
def test_markup_and_escapes_are_text(tab: Tab, view: str) -> None:
    shown = show(tab, view, "bold green")
    assert (
        "<img src=x onerror=\"document.title='owned'\"></script><script>alert(1)</script>" in shown
    )
    assert "http://elsewhere.example/?token=1 &lt;b&gt;not bold&lt;/b&gt;" in shown
    assert "owned" not in tab.evaluate("document.title")
    assert [visible(tab, one) for one in ("main img", "main script", "main b b", "iframe")] == [
        0
    ] * 4
    assert visible(tab, "script") == 2  # the page's own
    links = tab.evaluate("[...document.querySelectorAll('a')].map((one) => one.href)")
    assert links
    assert all(link.startswith(tab.evaluate("location.origin")) for link in links)
    # Colours are kept; what else an escape sequence asks for is not done.
    red, green, _ = map(float, re.findall(r"[\d.]+", tab.evaluate(styled("red", "color"))))
    assert red > 4 * green
    assert tab.evaluate(styled("bold green", "fontWeight")) == "700"
    assert "\x1b" not in shown
    assert "]8;;" not in shown
    assert "link" in shown


def styled(text: str, name: str) -> str:
    found = (
        f"[...document.querySelectorAll('pre span')].find((one) => one.textContent === {text!r})"
    )
    return f"getComputedStyle({found}).{name}"


@pytest.mark.parametrize("view", VIEWS)
def test_characters_that_hide_or_reorder_are_named(tab: Tab, view: str) -> None:
    shown = show(tab, view, "bold green")
    assert "right to left: U+202Eevil" in shown
    assert "a" + "U+200B" + "b" in shown
    for character in HOSTILE:
        if not character.isprintable() and character not in "\n\x1b":
            assert character not in shown, hex(ord(character))
            assert f"U+{ord(character):04X}" in shown
    names = tab.evaluate(
        "[...document.querySelectorAll('.hidden-character')].map((one) => one.title)"
    )
    assert set(names) == {"a character that is not shown"}


def test_the_policy_refuses_scripts_and_other_hosts(tab: Tab) -> None:
    show(tab, "rollout/special-hostile.0", "bold green")
    tab.evaluate(
        "document.head.append(Object.assign(document.createElement('script'),"
        " { textContent: 'window.owned = 1' }))"
    )
    tab.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"owned = 1\">')"
    )
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<b style=\"color: red\">x</b>')")
    for code in ("eval('1')", "new Function('return 1')()"):
        with pytest.raises(BrowserError, match=REFUSED):
            tab.evaluate(code, may_eval=False)
    for host in ("http://elsewhere.example/", "http://127.0.0.1:1/"):
        refused = f"fetch({json.dumps(host)}).then(() => 'sent', () => 'refused')"
        assert tab.evaluate(refused) == "refused"
    tab.evaluate(
        "document.body.append(Object.assign(new Image(), { src: 'http://elsewhere.example/a' }))"
    )
    tab.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert tab.evaluate("typeof window.owned") == "undefined"
    assert (
        tab.evaluate("getComputedStyle(document.body.querySelector('b[style]')).color")
        != "rgb(255, 0, 0)"
    )
    refusals = [one for one in tab.problems if REFUSED in one or "elsewhere.example" in one]
    assert len(refusals) >= 5
    assert [one for one in tab.problems if one not in refusals and "/x" not in one] == []
    tab.problems.clear()


def test_the_page_is_bound_by_the_policy_of_its_service(tab: Tab) -> None:
    header = "fetch('').then((one) => one.headers.get('Content-Security-Policy'))"
    assert tab.evaluate(header) == POLICY
    assert "unsafe" not in POLICY


def test_an_output_of_5_mb_is_folded_and_opens(tab: Tab) -> None:
    shown = show(tab, "rollout/special-huge.0", "show all (5.0 MB")
    assert len(shown) < 50_000
    tab.press("j")
    tab.click(".fold")
    tab.wait("document.querySelector('main').textContent.length > 5_000_000")
    texts = tab.evaluate(
        "[...document.querySelectorAll('.calls .text')].map((one) =>"
        " [...one.querySelectorAll('pre')].reduce((sum, part) => sum + part.textContent.length, 0))"
    )
    assert max(texts) == HUGE // 17 * 17
    # It takes keys and clicks still, and folds again.
    tab.press("2")
    tab.wait("!document.querySelector('details.calls').open")
    tab.press("2")
    tab.wait("document.querySelector('details.calls').open")
    tab.click(".fold")
    tab.wait("document.querySelector('main').textContent.length < 100_000")
    show(tab, "tokens/special-huge.0", "prompt")
    show(tab, "compare/special-huge", "as a list")
