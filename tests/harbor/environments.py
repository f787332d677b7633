"""Environments in this process, made as Harbor makes them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prorl_harbor import Environment


class Making:
    def __init__(self, directory: Path, image: Path) -> None:
        self.directory = directory / "environment"
        """The task's directory `environment`."""
        self.image = image
        self._trial = directory / "trial"
        self._made: list[Environment] = []
        self.directory.mkdir()

    def new(
        self,
        config: dict[str, Any] | None = None,
        *,
        policies: tuple[str, ...] = ("no-network",),
        **options: Any,
    ) -> "Environment":
        """Makes one: `config` is [environment] of task.toml, `policies` are the networks of the
        start and of the phases, `options` are Harbor's and ours."""
        from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
        from harbor.models.trial.paths import TrialPaths

        from prorl_harbor import Environment

        environment = Environment(
            environment_dir=self.directory,
            environment_name="task",
            session_id=f"task__{len(self._made)}__env",
            trial_paths=TrialPaths(trial_dir=self._trial),
            task_env_config=EnvironmentConfig(**{"docker_image": str(self.image)} | (config or {})),
            auto_mounts=[
                {"type": "bind", "source": "/", "target": f"/logs/{name}"}
                for name in ("agent", "verifier", "artifacts")
            ],
            network_policy=NetworkPolicy(network_mode=policies[0]),
            phase_network_policies=[NetworkPolicy(network_mode=one) for one in policies[1:]],
            **options,
        )
        self._made.append(environment)
        return environment

    async def started(self, config: dict[str, Any] | None = None, **options: Any) -> "Environment":
        environment = self.new(config, **options)
        await environment.start(force_build=False)
        return environment

    async def close(self) -> None:
        from prorl_harbor import close

        for environment in self._made:
            await environment.stop(delete=True)
        await close()
