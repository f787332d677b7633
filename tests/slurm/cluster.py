"""A private Slurm cluster for a test: several nodes on this machine, for any user.

Real daemons of the installed Slurm, in a directory and on ports of their own; they end with the
test. Processes are tracked by group, which needs no privileges: a signal reaches a task and not the
sandboxes below it, as with the control groups of real clusters.
"""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_service.local import free_port

CHECKOUT = Path(__file__).parents[2]
START_S = 60
LOOPBACK = "127.0.0.1"
DIE_WITH_US = ("setpriv", "--pdeathsig", "TERM")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}/socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimits=NONE
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=1
PartitionName=graceful PriorityTier=1 GraceTime=30
PartitionName=urgent PriorityTier=2
"""
"""Configuration in which jobs in `urgent` take the nodes of others: immediately from those in
`main`, as `scontrol requeue` does, and from those in `graceful` after time to end by themselves."""
NODE = "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs=2 State=UNKNOWN\n"


@dataclass(frozen=True, slots=True)
class Cluster:
    directory: Path
    environment: Mapping[str, str]

    def run(self, *command: str, **variables: str) -> str:
        """Returns the output of a client command, such as `squeue`, run in the checkout."""
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def sbatch(self, *arguments: str, **variables: str) -> str:
        """Submits a job and returns its number."""
        return self.run("sbatch", "--parsable", *arguments, **variables)

    def states(self) -> dict[str, str]:
        """Returns states of jobs that have not ended, by number or, in an array, NUMBER_INDEX."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def state(self, job: str) -> str:
        """Returns a job's state, even if it has ended."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")

    def preempt(self, job: str) -> None:
        """Lets another job take the nodes; waits until it has ended and `job` is pending."""
        nodes = self.run("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        command = ("--partition=urgent", f"--nodelist={nodes}", "--exclusive", "--wrap=:")
        urgent = self.sbatch("--output=/dev/null", *command)
        while self.state(urgent) != "COMPLETED" or self.states().get(job) != "PENDING":
            time.sleep(0.1)

    def begin_again(self, job: str) -> None:
        """Restarts a job immediately; Slurm itself would wait for two minutes."""
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")


@contextmanager
def cluster(
    directory: Path,
    nodes: Sequence[str],
    *,
    proctrack: str = "pgid",
    addresses: Sequence[str] = (),
) -> Iterator[Cluster]:
    """`addresses`: those of the nodes on loopback; one for all by default."""
    with ExitStack() as stack:
        munge = directory / "munge"
        munge.mkdir(mode=0o711, parents=True)
        _configure(directory, nodes, addresses or [LOOPBACK] * len(nodes), proctrack)
        environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        environment["PATH"] += ":/usr/sbin"

        def start(*command: str) -> None:
            _start(stack, directory, command, environment)

        start("munged", "--foreground", "--force", *_munge_options(munge))
        _wait((munge / "socket").exists, directory)
        start("slurmctld", "-D", "-c", "-f", environment["SLURM_CONF"])
        for name in nodes:
            (directory / f"spool.{name}").mkdir()
            start("slurmd", "-D", "-N", name, "-f", environment["SLURM_CONF"])
        _wait(lambda: _idle(environment) == len(nodes), directory)
        yield Cluster(directory, environment)


def _configure(
    directory: Path, nodes: Sequence[str], addresses: Sequence[str], proctrack: str
) -> None:
    if shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin") is None:
        raise RuntimeError("Slurm is not installed on this machine; run scripts/install-slurm")
    host = socket.gethostname().partition(".")[0]
    (directory / "state").mkdir()
    key = directory / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    control, *ports = _free_ports(len(nodes) + 1)
    lines = [
        NODE.format(name=name, host=host, address=address, port=port)
        for name, address, port in zip(nodes, addresses, ports, strict=True)
    ]
    general = CONFIGURATION.format(
        host=host,
        port=control,
        user=pwd.getpwuid(os.getuid()).pw_name,
        munge=directory / "munge",
        directory=directory,
        proctrack=proctrack,
    )
    # Nodes must come before the partitions that contain them.
    text = general.replace("PartitionName=DEFAULT", "".join(lines) + "PartitionName=DEFAULT")
    (directory / "slurm.conf").write_text(text)


def _munge_options(directory: Path) -> list[str]:
    files = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return [
        f"--socket={directory}/socket",
        *(f"--{option}={directory}/{name}" for option, name in files.items()),
    ]


def _start(
    stack: ExitStack, directory: Path, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    """Starts a daemon that ends with `stack`."""
    output = stack.enter_context((directory / "daemons.log").open("ab"))
    process = subprocess.Popen(
        [*DIE_WITH_US, *command], env=environment, stdout=output, stderr=output
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _free_ports(count: int) -> set[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports


def _idle(environment: Mapping[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%T"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split().count("idle")


def _wait(holds: Callable[[], bool], directory: Path) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        logs = "".join(path.read_text() for path in directory.glob("*.log"))
        assert time.monotonic() < deadline, f"Slurm does not start: {logs[-3000:]}"
        time.sleep(0.05)
