"""Weights that engines fetch: the service's offer, and the plug-in for vLLM that takes it."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from prorl_service.inference.engines import handout
from prorl_service.inference.engines.handout import OfferedFile as ServiceOffer
from prorl_service.inference.engines.handout import offered
from prorl_service.net.fetching import PREFIX, Fetch, FetchFailed, Offer
from prorl_service.utils import differences

ENGINE = "http://127.0.0.1:9"
CONTENT = os.urandom(9_000_001)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(autouse=True)
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The engine's temporary directory; nothing may be left there."""
    directory = tmp_path / "engine"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


def elsewhere(offer: ServiceOffer) -> Offer:
    """Returns the offer as seen by a host that does not share the service's file system."""
    return Offer("/nowhere", offer.size, offer.url)


@pytest.fixture
def difference(weights: Path) -> Path:
    """Difference of another file, `new`, from the weights."""
    new, path = weights.with_name("new"), weights.with_name("difference")
    new.write_bytes(CONTENT[:4_000_000] + bytes(9) + CONTENT[4_000_009:])
    assert differences.write(weights, new, path)
    return path


async def downloaded(weights: Path) -> Fetch:
    """Returns a download that is kept."""
    async with offered(weights, ENGINE, lambda: None) as offer:
        theirs = replace(elsewhere(offer), path=f"/nowhere/{weights.name}")
        fetch = await asyncio.to_thread(Fetch, theirs)
        await asyncio.to_thread(fetch.file)
    fetch.keep()
    return fetch


async def test_a_file_that_the_engine_can_read_is_not_sent(weights: Path) -> None:
    async with offered(weights, ENGINE, lambda: None) as offer:
        fetch = Fetch(Offer(str(weights), offer.size, "http://127.0.0.1:9/"))
    assert fetch.file().read() == CONTENT
    fetch.close()


async def test_workers_of_one_host_share_a_download(weights: Path) -> None:
    async with offered(weights, ENGINE, lambda: None) as offer:
        begun = [asyncio.to_thread(Fetch, elsewhere(offer)) for _ in range(4)]
        fetches = await asyncio.gather(*begun)
        await offer.transfers.drain()
        assert offer.served == 1
    files = [await asyncio.to_thread(fetch.file) for fetch in fetches]
    assert all(os.pread(file.fileno(), len(CONTENT) + 1, 0) == CONTENT for file in files)
    for fetch in fetches:
        await asyncio.to_thread(fetch.close)


async def test_workers_that_have_the_base_share_its_difference(
    weights: Path, difference: Path
) -> None:
    """One of them has lost it."""
    before = [await downloaded(weights) for _ in range(3)]
    new = weights.with_name("new")
    async with offered(new, ENGINE, lambda: None, difference) as offer:
        theirs = replace(elsewhere(offer), path="/nowhere/new", base=weights.name)
        fetches = [await asyncio.to_thread(Fetch, theirs, one) for one in (*before, None)]
        await offer.transfers.drain()
        assert offer.served == 1
    for fetch in fetches:
        file = await asyncio.to_thread(fetch.file)
        assert os.pread(file.fileno(), len(CONTENT) + 1, 0) == new.read_bytes()
    for fetch in (*fetches, *before):
        await asyncio.to_thread(fetch.close)


@pytest.mark.parametrize("broken", ["difference", "base", "no difference"])
async def test_the_whole_file_is_fetched_where_the_difference_is_of_no_use(
    weights: Path, difference: Path, broken: str
) -> None:
    before = await downloaded(weights)
    if broken == "base":
        os.pwrite(before.file().fileno(), b"broken", 100)
    elif broken == "difference":
        os.truncate(difference, 200)
    else:
        os.unlink(difference)
    new = weights.with_name("new")
    async with offered(new, ENGINE, lambda: None, difference) as offer:
        theirs = replace(elsewhere(offer), base=weights.name)
        fetch = await asyncio.to_thread(Fetch, theirs, before)
        file = await asyncio.to_thread(fetch.file)
    assert os.pread(file.fileno(), len(CONTENT) + 1, 0) == new.read_bytes()
    for one in (fetch, before):
        await asyncio.to_thread(one.close)


async def test_progress_is_reported_while_a_file_is_sent(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handout, "PART_BYTES", 2**20)
    told: list[None] = []
    async with offered(weights, ENGINE, lambda: told.append(None)) as offer:
        fetch = await asyncio.to_thread(Fetch, elsewhere(offer))
        await offer.transfers.drain()
    file = await asyncio.to_thread(fetch.file)
    assert os.pread(file.fileno(), len(CONTENT) + 1, 0) == CONTENT
    assert len(told) == len(CONTENT) // 2**20 + 1
    await asyncio.to_thread(fetch.close)


async def test_a_download_that_breaks_off_is_reported(weights: Path) -> None:
    async with offered(weights, ENGINE, lambda: None) as offer:
        fetch = await asyncio.to_thread(Fetch, Offer("/nowhere", offer.size + 1, offer.url))
        await offer.transfers.drain()
    with pytest.raises(FetchFailed, match=r"9000001 of 9000002 bytes arrived"):
        await asyncio.to_thread(fetch.file)
    await asyncio.to_thread(fetch.close)


async def test_an_unreachable_service_is_reported_immediately() -> None:
    with pytest.raises(FetchFailed, match="refused"):
        await asyncio.to_thread(Fetch, Offer("/nowhere", 5, "http://127.0.0.1:9/x"))


async def test_files_left_by_a_killed_engine_are_removed(weights: Path, spools: Path) -> None:
    left = spools / f"{PREFIX}left"
    left.write_bytes(b"weights")
    os.utime(left, (0, 0))
    async with offered(weights, ENGINE, lambda: None) as offer:
        fetch = await asyncio.to_thread(Fetch, elsewhere(offer))
        assert not (spools / f"{PREFIX}left").exists()
        await asyncio.to_thread(fetch.close)


async def test_only_the_secret_url_is_answered_and_only_while_it_is_offered(weights: Path) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        async with offered(weights, ENGINE, lambda: None) as offer:
            base, _, _ = offer.url.rpartition("/")
            for url in (f"{base}/", f"{base}/weights.safetensors", f"{offer.url}x"):
                assert (await http.get(url)).status_code == 404
            assert (await http.post(offer.url)).status_code == 404
            assert (await http.get(offer.url)).content == CONTENT
        with pytest.raises(httpx.ConnectError):
            await http.get(offer.url)


async def test_a_path_that_is_not_ascii_is_not_found(weights: Path) -> None:
    async with offered(weights, ENGINE, lambda: None) as offer:
        url = urlsplit(offer.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write("GET /\u00e9 HTTP/1.1\r\n\r\n".encode("latin-1"))
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        await offer.transfers.drain()
        assert offer.transfers.failure is None


async def test_a_bug_in_a_transfer_is_noticed(weights: Path) -> None:
    def refuse() -> None:
        raise KeyError("a bug")

    async with offered(weights, ENGINE, refuse) as offer:
        async with httpx.AsyncClient(trust_env=False) as http:
            await http.get(offer.url)
        await offer.transfers.drain()
        assert offer.transfers.failure is not None
        assert "KeyError('a bug')" in offer.transfers.failure
