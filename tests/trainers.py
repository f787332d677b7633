"""Clients of trainings that hold the policy, as a trainer's are."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.schemas import PolicyClaim, TrainingIdentity
from prorl_service.testing import safetensors


def training(name: str = "training", process: str = "1") -> TrainingIdentity:
    return TrainingIdentity(
        training_id=name, process_id=process, host="node1", pid=4711, user="ada"
    )


DEFAULT = training()


class Content:
    """A file of weights with these values."""

    def __init__(self, values: bytes) -> None:
        self.file = safetensors(values)

    def __iter__(self) -> Iterator[bytes]:
        yield self.file

    def write(self, path: Path) -> None:
        path.write_bytes(self.file)


@contextmanager
def trainer(url: str, who: TrainingIdentity = DEFAULT, **options: Any) -> Iterator[RolloutClient]:
    with RolloutClient(url, training=who.key, **options) as client:
        client.claim_policy(PolicyClaim(training=who))
        yield client


@asynccontextmanager
async def async_trainer(
    url: str, who: TrainingIdentity = DEFAULT, **options: Any
) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(url, training=who.key, **options) as client:
        await client.claim_policy(PolicyClaim(training=who))
        yield client
