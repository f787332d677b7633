"""One service with rollouts of every kind, one browser, and a tab for each test."""

from collections.abc import Iterator

import httpx
import pytest

from prorl_service.net.credentials import own_token
from tests.page.browser import Browser, Tab
from tests.page.chromium import browser
from tests.page.showcase import world
from tests.page.visit import sign_in


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that has ended 1,000 rollouts."""
    with world(tmp_path_factory.mktemp("world")) as service:
        yield service.url


@pytest.fixture(scope="module")
def token(url: str) -> str:
    """The token that the service has made."""
    token = own_token()
    assert token is not None
    return token


@pytest.fixture(scope="module")
def http(url: str, token: str) -> Iterator[httpx.Client]:
    """What the page is compared with."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture
def stranger(chromium: Browser) -> Iterator[Tab]:
    """A tab that has opened nothing yet."""
    tab = chromium.tab()
    yield tab
    tab.close()


@pytest.fixture
def other(chromium: Browser) -> Iterator[Tab]:
    """A second tab that has opened nothing yet."""
    tab = chromium.tab()
    yield tab
    tab.close()


@pytest.fixture
def tab(stranger: Tab, url: str, token: str) -> Iterator[Tab]:
    """A tab that has signed in. The page has to do without errors, warnings and other hosts."""
    sign_in(stranger, url, token)
    stranger.problems.clear()
    yield stranger
    stranger.evaluate("0")  # which reads the last events
    assert stranger.problems == []
    assert stranger.hosts == {httpx.URL(url).netloc.decode()}
