"""Everything that people can query of a service, in one place for its routes."""

from prorl_service.agents.description import describe
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal
from prorl_service.schemas.views import Agents, Training
from prorl_service.shelf import training
from prorl_service.shelf.details import Details
from prorl_service.shelf.lists import Lists
from prorl_service.shelf.store import Shelf


class Views:
    def __init__(
        self,
        run: str,
        executor: RolloutExecutor,
        journal: Journal,
        backends: BackendPool,
        shelf: Shelf | None,
    ) -> None:
        """`shelf` is None if it is off."""
        self.shelf = shelf
        self.lists = Lists(run, executor, journal, shelf)
        self.details = Details(run, executor, journal, backends, shelf, self.lists)
        self._run = run
        self._agents = executor.agents

    async def training(self, run: str | None, agent: str | None) -> Training:
        """Returns the rows of `run`, or of this run if None. Raises `ShelfError`."""
        run = run or self._run
        rows = []
        if self.shelf is not None:
            rows = await self.shelf.read(lambda db: training.versions(db, run, agent))
        return Training(run=run, versions=rows, notice=self.lists.notice)

    def agents(self) -> Agents:
        return Agents(agents=[describe(self._agents[name]) for name in self._agents.names])
