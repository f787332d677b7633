"""When a trainer sends the difference from its last weights, and when the whole file."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from prorl_service.client.http import RolloutClient
from prorl_service.client.weights_copy import REST, WHOLE_EVERY, WeightsCopy
from prorl_service.schemas import WeightsReport
from prorl_service.utils import files
from tests.trainers import Content

OLD = os.urandom(3000)


class Service(RolloutClient):
    """Takes any weights, and notes what it is sent."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.ways: list[str] = []

    def stream_weights(
        self, content: Iterable[bytes | memoryview], *, after: int = 0, base: str = ""
    ) -> WeightsReport:
        for _ in content:
            pass
        self.ways.append("difference" if base else "whole")
        return WeightsReport(version=after + 1, applied=[], pending=[])


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as client:
        yield client


def push(copy: WeightsCopy, service: Service, values: bytes = OLD) -> None:
    copy.send(service, Content(values), base=copy._digest, after=0)


def test_a_difference_is_sent_while_it_is_smaller(service: Service) -> None:
    copy = WeightsCopy()
    for values in (OLD, b"new" + OLD[3:], os.urandom(3000), OLD + b"longer"):
        push(copy, service, values)
    assert service.ways == ["whole", "difference", "whole", "whole"]


def test_the_whole_file_is_sent_to_a_service_that_has_others(service: Service) -> None:
    copy = WeightsCopy()
    push(copy, service)
    copy.send(service, Content(OLD), base="f" * 64, after=0)
    assert service.ways == ["whole", "whole"]


def test_the_whole_file_is_sent_from_time_to_time(service: Service) -> None:
    copy = WeightsCopy()
    for _ in range(2 * WHOLE_EVERY + 2):
        push(copy, service)
        copy._whole_s = 1000.0
    assert service.ways == 2 * ["whole", *["difference"] * WHOLE_EVERY]


def test_differences_that_take_longer_are_given_up_for_a_while(service: Service) -> None:
    copy = WeightsCopy()
    push(copy, service)
    copy._whole_s = 0.0
    for _ in range(3 + REST + 2):
        push(copy, service)
    assert service.ways == ["whole", *["difference"] * 3, *["whole"] * (REST + 1), "difference"]


def test_no_copy_is_kept_while_the_disk_is_full(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "temporary_directory", lambda _: tmp_path)

    class TooLarge(Content):
        def write(self, path: Path) -> None:
            path.write_bytes(self.file[:100])
            raise OSError(28, "No space left on device")

    copy = WeightsCopy()
    copy.send(service, TooLarge(OLD), base="", after=0)
    assert service.ways == ["whole"]
    assert list(tmp_path.iterdir()) == []
