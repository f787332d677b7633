"""The directory of services, with files in it that are no announcements."""

import json
import logging
import os
import stat
from collections import Counter
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.front.discovery import Announcement, Announcements, announcement
from prorl_service.schemas import Stage
from tests.front.conftest import service
from tests.front.odd_service import odd_service
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import scored

WAIT_S = 120
BAD = {
    "bytes": b"\xff\xfe\x00",
    "shape": b'["http://127.0.0.1:1"]',
    "host": b'{"url": "http://[::1"}',
    "port": b'{"url": "http://127.0.0.1:99999"}',
    "scheme": b'{"url": "file:///etc/passwd"}',
    "path": b'{"url": "http://127.0.0.1:80/v1"}',
    "huge": json.dumps({"url": "http://127.0.0.1:" + "1" * 10_000}).encode(),
}


def write_bad_files(directory: Path) -> set[str]:
    """Writes entries that announce nothing; returns their names without `.json`."""
    directory.mkdir(exist_ok=True)
    for name, content in BAD.items():
        (directory / f"{name}.json").write_bytes(content)
    (directory / "directory.json").mkdir()
    os.mkfifo(directory / "pipe.json")
    return {*BAD, "directory", "pipe"}


def warned_of(caplog: pytest.LogCaptureFixture, names: set[str]) -> Counter[str]:
    """Counts the warnings that name each file."""
    texts = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    return Counter({name: sum(f"{name}.json" in one for one in texts) for name in names})


@pytest.mark.processes
async def test_files_that_announce_nothing_are_reported_once_and_skipped(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = write_bad_files(tmp_path / "services")
    (tmp_path / "services" / "unknown.json").write_text('{"url": "http://a..b:80"}')
    (tmp_path / "services" / "dangling.json").symlink_to("gone")
    with service("z", tmp_path):
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            for name in ("first", "second"):
                group = scored(name, 0, 1, sleep=1.5)
                await client.submit([group])
                ended = await client.wait(group.rollout_ids(), WAIT_S)
                assert [one.reward for one in ended] == [0, 1]
            assert (await client.status()).failure is None
    assert warned_of(caplog, names) == Counter(dict.fromkeys(names, 1))
    assert "Traceback" not in caplog.text


@pytest.mark.processes
async def test_a_service_is_found_after_a_bad_file_took_its_place(
    settings: Settings, tmp_path: Path
) -> None:
    with service("a", tmp_path) as running:
        file = tmp_path / "services" / "a.json"
        announced = file.read_bytes()
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            file.write_bytes(b"\xff")
            await until(client.status, lambda status: not status.workers[Stage.RUN])
            file.write_bytes(announced)
            group = scored("g", 0, 1)
            await client.submit([group])
            ended = await client.wait(group.rollout_ids(), WAIT_S)
    assert running.url.encode() in announced
    assert [one.reward for one in ended] == [0, 1]


@pytest.mark.processes
async def test_an_error_in_one_group_ends_no_other(
    services: list[local.LocalProcess],
    settings: Settings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = [scored(f"g{i}", 0, 1, sleep=0.2) for i in range(8)]
    async with (
        odd_service(tmp_path / "services" / "odd.json") as odd,
        serving(settings) as url,
        AsyncRolloutClient(url) as client,
    ):
        await until(odd.was_told)
        await client.submit(groups)
        ids = [one for group in groups for one in group.rollout_ids()]
        ended = await client.wait(ids, WAIT_S)
        await client.health()
    failed = [one for one in ended if one.error is not None]
    assert {one.group_id for one in failed} == odd.group_ids
    assert {one.error.blame for one in failed if one.error} == {"service"}
    assert 0 < len(failed) < len(ended)
    errors = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == len(odd.group_ids)
    assert "Traceback" not in caplog.text


def test_a_file_that_another_user_could_have_written_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "services"
    file = directory / "a.json"
    directory.mkdir()
    Announcement(file, "127.0.0.1").write(8080)
    announcements = Announcements(directory)
    assert list(announcements.look()) == ["a"]
    file.chmod(0o664)
    assert not announcements.look()
    assert f"{file} is not used: it can be written by other users" in caplog.text
    file.chmod(0o644)
    assert list(announcements.look()) == ["a"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.json"
    Announcement(file, "127.0.0.1").write(8080)
    os.chown(file, 12345, 0)
    assert not Announcements(tmp_path).look()
    assert f"{file} is not used: it belongs to user 12345" in caplog.text


def test_an_announcement_is_writable_only_by_its_own_user(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        announced = announcement(tmp_path / "services" / "a.json", None, "127.0.0.1")
        assert announced is not None
        announced.write(8080)
    finally:
        os.umask(umask)
    assert list(Announcements(tmp_path / "services").look()) == ["a"]
    assert stat.S_IMODE((tmp_path / "services").stat().st_mode) == 0o700
