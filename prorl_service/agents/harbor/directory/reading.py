"""A Harbor task directory as a task of this service. Its files become archives by digest.

Raises `TaskError` with the file and the key for what cannot be honoured. Builds no image and runs
nothing.
"""

import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from prorl_service.agents.harbor import data as wire
from prorl_service.agents.harbor.directory import config
from prorl_service.agents.harbor.directory.config import TaskToml
from prorl_service.errors import TaskError
from prorl_service.sandbox.archives import store_archive
from prorl_service.sandbox.images.dockerfiles.context import context_archive
from prorl_service.schemas import Message, Task

AGENT = "harbor"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_MODES = {"public": "public", "no-network": "none", "allowlist": "allowlist"}
_ID = re.compile(r"[^A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class TaskDirectory:
    """A directory that was read; `task()` is what trainers send."""

    path: Path
    toml: TaskToml
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of ${VARIABLES} of the host that `env` tables name."""
    builds: bool = False
    """Whether Dockerfiles come before images that tasks name."""

    @classmethod
    def read(
        cls, path: Path, variables: Mapping[str, str] | None = None, *, builds: bool = False
    ) -> "TaskDirectory":
        """Raises `TaskError`."""
        found = cls(path, config.read(path / "task.toml"), variables or {}, builds)
        found._check_files()
        return found

    @property
    def name(self) -> str:
        return str(self.toml.task.get("name") or self.path.resolve().name)

    @property
    def has_steps(self) -> bool:
        return bool(self.toml.steps)

    def unknown_keys(self) -> list[str]:
        return sorted(config.unknown_keys(self.toml))

    def task(self) -> Task:
        """Stores the archives. Raises `TaskError`."""
        steps = self._steps()
        environment = self.toml.environment
        place = self._place(environment)
        place.network = _network(self.toml.agent) or place.network
        data = wire.HarborData(
            place=place,
            mcp=[
                wire.McpServer(name=server.name, command=[server.command or "", *server.args])
                for server in environment.mcp_servers
            ],
            steps=steps,
            reward=self.toml.multi_step_reward_strategy,
            work=self.toml.verifier.work,
            isolated=self.toml.verifier.isolated,
            skills=environment.skills_dir,
            about=_plain(self.toml.metadata),
        )
        return Task(
            task_id=_ID.sub("-", self.name),
            agent=AGENT,
            messages=[Message(role="user", content=self._instruction(0))],
            image=self._image(self.path / "environment", environment.docker_image),
            data=data.model_dump(mode="json", exclude_defaults=True),
        )

    def solution(self, index: int) -> tuple[str, dict[str, str]] | None:
        """Returns the archive and the variables of a step's oracle; None if there is none."""
        step = self._step_directory(index)
        found = [one / "solution" for one in (step, self.path) if (one / "solution").is_dir()]
        if not found or not (found[0] / "solve.sh").is_file():
            return None
        variables = self._resolved(self.toml.solution.env, "solution.env")
        return store_archive(_tar(found[0])), variables

    # --- steps ----------------------------------------------------------------------------------

    def _steps(self) -> list[wire.Step]:
        tables: Sequence[config.StepTable | None] = self.toml.steps or [None]
        return [self._step(index, table) for index, table in enumerate(tables)]

    def _step(self, index: int, table: config.StepTable | None) -> wire.Step:
        own = config.Agent() if table is None else table.agent
        agent = self.toml.agent
        files = self._step_directory(index) / "workdir" if table is not None else None
        has_files = files is not None and files.is_dir()
        user = agent.user if own.user is None else own.user
        artifacts = [*self.toml.artifacts, *([] if table is None else table.artifacts)]
        return wire.Step(
            name="" if table is None else table.name,
            instruction=self._instruction(index) if index else "",
            timeout_s=own.timeout_sec or agent.timeout_sec,
            user=None if user is None else str(user),
            files=store_archive(_tar(files)) if has_files and files is not None else None,
            has_setup=has_files and files is not None and (files / "setup.sh").is_file(),
            healthcheck=_health(None if table is None else table.healthcheck),
            min_reward=_least(None if table is None else table.min_reward),
            artifacts=[wire.Artifact(source=one.source, exclude=one.exclude) for one in artifacts],
            verifier=self._verifier(index, table),
        )

    def _step_directory(self, index: int) -> Path:
        return self.path / "steps" / self.toml.steps[index].name if self.has_steps else self.path

    def _instruction(self, index: int) -> str:
        return (self._step_directory(index) / "instruction.md").read_text()

    # --- verifiers ------------------------------------------------------------------------------

    def _verifier(self, index: int, table: config.StepTable | None) -> wire.Verifier:
        shared = self.toml.verifier
        own = shared if table is None else table.verifier
        place, owns_tests = self._verifier_place(index, own)
        user = shared.user if own.user is None else own.user
        said = {**shared.env, **own.env}
        timeout_s = own.timeout_sec if "timeout_sec" in own.model_fields_set else shared.timeout_sec
        return wire.Verifier(
            tests=[] if owns_tests else [store_archive(_tar(one)) for one in self._tests(index)],
            timeout_s=timeout_s,
            environment=self._resolved(said, "verifier.env"),
            user=None if user is None else str(user),
            place=place,
            network=self._verifier_network(own, place),
            collect=[
                wire.Collect(command=hook.command, timeout_s=hook.timeout_sec)
                for hook in (own.collect or shared.collect)
            ],
            reward_if_absent=(
                shared.reward_if_absent if own.reward_if_absent is None else own.reward_if_absent
            ),
        )

    def _verifier_network(self, own: config.Verifier, place: wire.Place | None) -> wire.Network:
        """A verifier's own network comes before that of its sandbox."""
        said = _network(own) or _network(self.toml.verifier)
        return said or (place or self._place(self.toml.environment)).network

    def _verifier_place(self, index: int, own: config.Verifier) -> tuple[wire.Place | None, bool]:
        """Returns the verifier's own sandbox, if it has one, and whether its image has the tests.

        An environment of the step comes before the task's, and that before a Dockerfile among the
        tests; without any, it is a fresh sandbox of the task's image.
        """
        shared = self.toml.verifier
        if (own.mode or shared.mode or "shared") == "shared":
            return None, False
        settings = own.environment or shared.environment or self.toml.environment
        step_tests = self._step_directory(index) / "tests"
        for environment, tests in (
            (own.environment, step_tests),
            (shared.environment, self.path / "tests"),
        ):
            named = environment.docker_image if environment is not None else None
            if named or (tests / "Dockerfile").is_file():
                image = self._image(tests, named)
                return self._place(settings, image=image), True
        return self._place(settings), False

    def _tests(self, index: int) -> Iterator[Path]:
        for one in dict.fromkeys((self.path / "tests", self._step_directory(index) / "tests")):
            if one.is_dir():
                yield one

    # --- sandboxes ------------------------------------------------------------------------------

    def _place(self, environment: config.Environment, *, image: str | None = None) -> wire.Place:
        return wire.Place(
            image=image,
            cpus=environment.cpus,
            memory_mb=environment.memory_mb,
            storage_mb=environment.storage_mb,
            environment=self._resolved(environment.env, "environment.env"),
            workdir=environment.workdir,
            healthcheck=_health(environment.healthcheck),
            network=_network(environment) or wire.Network(mode="public"),
        )

    def _image(self, directory: Path, named: str | None) -> str:
        """A prebuilt image comes before a Dockerfile, as in Harbor, unless images are built."""
        if named is None or (self.builds and (directory / "Dockerfile").is_file()):
            return context_archive(directory)
        return named

    def _resolved(self, environment: Mapping[str, str], where: str) -> dict[str, str]:
        """Fills in ${VARIABLES}. Raises `TaskError` for one without a value: nothing of the host
        goes into a task unasked, since tasks are logged."""
        return {name: self._value(value, f"{where}.{name}") for name, value in environment.items()}

    def _value(self, value: str, where: str) -> str:
        found = _TEMPLATE.fullmatch(value)
        if found is None:
            return value
        name, default = found.groups()
        resolved = self.variables.get(name, default)
        if resolved is None:
            raise TaskError(
                f"{self.path}/task.toml: {where} needs ${name} of the host",
                hint=f"give it: --env {name}=VALUE",
            )
        return resolved

    # --- files ----------------------------------------------------------------------------------

    def _check_files(self) -> None:
        for index in range(max(1, len(self.toml.steps))):
            directory = self._step_directory(index)
            self._must_have(directory / "instruction.md")
            if (directory / "trajectory.json").exists():
                raise TaskError(
                    f"{directory}/trajectory.json: rollouts begin with their own first prompt"
                )
            if not any((one / "test.sh").is_file() for one in self._tests(index)):
                self._must_have(directory / "tests" / "test.sh")
        environment = self.path / "environment"
        for name in COMPOSE:
            for one in (environment, self.path / "tests"):
                if (one / name).exists():
                    raise TaskError(f"{one}/{name}: a task is one sandbox, without other services")
        if self.toml.environment.docker_image is None:
            self._must_have(environment / "Dockerfile")

    def _must_have(self, file: Path) -> None:
        if not file.is_file():
            raise TaskError(f"{file} is missing")


def _network(phase: config._Phase) -> wire.Network | None:
    if phase.network_mode is None:
        return None
    return wire.Network.model_validate(
        {"mode": _MODES[phase.network_mode], "hosts": phase.allowed_hosts}
    )


def _health(check: config.HealthTable | None) -> wire.Healthcheck | None:
    known = set(wire.Healthcheck.model_fields)
    return None if check is None else wire.Healthcheck(**check.model_dump(include=known))


def _least(least: float | dict[str, float] | None) -> dict[str, float]:
    if least is None:
        return {}
    return least if isinstance(least, dict) else {"reward": least}


def _plain(metadata: Mapping[str, object]) -> dict[str, JsonValue]:
    """Returns metadata as JSON has it: TOML also knows dates."""
    kinds = (str, int, float, bool, list)
    return {
        name: value if isinstance(value, kinds) else str(value) for name, value in metadata.items()
    }


def _tar(directory: Path) -> bytes:
    """Returns a directory as a tar that depends on its content only. Raises `TaskError`."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for root, directories, names in os.walk(directory):
            directories.sort()
            for name in sorted([*names, *directories]):
                path = Path(root, name)
                entry = tar.gettarinfo(path, arcname=str(path.relative_to(directory)))
                if not (entry.isreg() or entry.isdir() or entry.issym()):
                    raise TaskError(f"{path} is no file, directory or link")
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
                with path.open("rb") if entry.isreg() else io.BytesIO() as file:
                    tar.addfile(entry, file if entry.isreg() else None)
    return content.getvalue()
