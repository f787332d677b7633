"""Answers and programs that try to hang, crash or fool their scorer. All are wrong.

Shared by tests and the benchmark. Programs are graded on tests whose outputs cannot be guessed.
"""

from dataclasses import dataclass
from typing import Any

SECRETS = {"inputs": ["1\n", "2\n"], "outputs": ["5e1f-c0ffee-3d\n", "77aa-decaf-91\n"]}
SECRET_CALLS = {"fn_name": "solve", "inputs": [[1], [2]], "outputs": ["5e1f-c0ffee", "77aa-decaf"]}


@dataclass(frozen=True, slots=True)
class HostileAnswer:
    name: str
    reply: str
    gold: str = "42"


@dataclass(frozen=True, slots=True)
class HostileProgram:
    name: str
    source: str
    is_call: bool = False

    @property
    def tests(self) -> dict[str, Any]:
        return SECRET_CALLS if self.is_call else SECRETS


def box(content: str) -> str:
    return f"\\boxed{{{content}}}"


HOSTILE_ANSWERS = [
    HostileAnswer("tower of powers", box("9^{9^{9^{9}}}")),
    HostileAnswer("huge power", box("7^{10^{10}}"), gold=r"\frac{1}{3}"),
    HostileAnswer("huge factorial", box("(10^{9})!")),
    HostileAnswer("factorial of factorials", box("((9!)!)!")),
    HostileAnswer("huge binomial", box(r"\binom{10^{9}}{10^{8}}")),
    HostileAnswer("huge sum", box(r"\sum_{i=1}^{10^{12}} \frac{1}{i^{2}}")),
    HostileAnswer("huge product", box(r"\prod_{i=1}^{10^{9}} i")),
    HostileAnswer("huge expansion", box("(x+y+z)^{400}"), gold="x^2+1"),
    HostileAnswer("sine of a tower", box(r"\sin(10^{10^{10}})")),
    HostileAnswer("hard integral", box(r"\int_0^1 \sin(\tan(x^{x^{x}})) e^{e^{x}} dx")),
    HostileAnswer("digits of a tower", box(r"\lfloor \log(9^{9^{9}}) \rfloor")),
    HostileAnswer("deep braces", box("{" * 50 + "41" + "}" * 50)),
    HostileAnswer("deep parentheses", box("(" * 50 + "41" + ")" * 50)),
    HostileAnswer("deep fractions", box(r"\frac{1}{" * 500 + "2" + "}" * 500)),
    HostileAnswer("deep roots", box(r"\sqrt{" * 300 + "2" + "}" * 300)),
    HostileAnswer("deeper than any stack", box("{" * 200_000 + "}" * 200_000)),
    HostileAnswer("a million digits", box("4" * 1_000_000)),
    HostileAnswer("repeats itself", box("+".join(["1"] * 100_000))),
    HostileAnswer("boxes for ever", r"\boxed{" * 100_000),
    HostileAnswer("many boxes", " ".join(box(str(number)) for number in range(41))),
    HostileAnswer("every answer", box(",".join(map(str, range(100))))),
    HostileAnswer("every number", box(r"(-\infty,\infty)")),
    HostileAnswer("one or the other", box(r"41 \text{ or } 42")),
    HostileAnswer("not a number", box(r"\frac{0}{0}"), gold=r"\frac{1}{2}"),
    HostileAnswer("imitates the grader", 'score: 1.0\n{"correct": 1.0}\n' + box(r"\text{True}")),
    HostileAnswer("imitates the library", box("Integer(42)")),
    HostileAnswer("code", box("__import__('os')._exit(0)")),
    HostileAnswer("code in text", box(r"\text{__import__('os').system('kill -9 0')}")),
    HostileAnswer("the question", "The value of 6*7 is the value of 42."),
    HostileAnswer("out of the box", "\\boxed{41} 42}"),
    HostileAnswer("not text", box("\x00\udcff\u202e\U0001f4a9")),
]

LOOKS_EVERYWHERE = """
import gc, glob, os, sys
found = [repr(sys.argv), repr(dict(os.environ))]
frame = sys._getframe()
while frame is not None:
    found.append(repr((frame.f_locals, frame.f_globals))[:5000])
    frame = frame.f_back
for thing in gc.get_objects():
    if type(thing) in (dict, list, tuple):
        found.append(repr(thing)[:300])
for path in glob.glob("/proc/[0-9]*/*") + glob.glob("/proc/[0-9]*/fd/*") + [
    os.path.join(where, name)
    for root in ("/workspace", "/tmp", "/dev/shm")
    for where, _, names in os.walk(root)
    for name in names
]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        found.append(os.read(fd, 3000).decode("utf-8", "replace"))
    except (OSError, ValueError):
        pass
print("\\n".join(found)[:60000])
"""

TELLS_EVERYBODY = """
import os
for pid in [pid for pid in os.listdir("/proc") if pid.isdigit()]:
    for fd in range(64):
        try:
            target = os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(target, b'{"end": "exited", "exit_code": 0, "cpu_s": 0}')
        except OSError:
            pass
for fd in range(64):
    try:
        os.write(fd, b'{"end": "exited", "exit_code": 0, "cpu_s": 0, "passed": true}\\n')
    except OSError:
        pass
"""

TAKES_OVER = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
pidfd = libc.syscall(434, os.getppid(), 0)
control = libc.syscall(438, pidfd, 0, 0)
said = b'{"end": "exited", "exit_code": 0, "cpu_s": 0.0}'
if control >= 0:
    with socket.socket(fileno=control) as host:
        for _ in range(50):
            host.send(said)
libc.ptrace(16, os.getppid(), 0, 0)
libc.ptrace(8, os.getppid(), 0, 0)
"""

LIVES_ON = """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(0.01)
        os._exit(0)
print("I am still here")
"""

FINDS_THE_GRADER = """
import sys
frame = sys._getframe()
while frame is not None and "in_outs" not in frame.f_locals:
    frame = frame.f_back
outputs, number = frame.f_locals["in_outs"]["outputs"], frame.f_locals["index"]
"""

CHEATS = [
    HostileProgram("prints what is expected", FINDS_THE_GRADER + "print(outputs[number])"),
    HostileProgram("expects nothing", FINDS_THE_GRADER + "outputs[number] = ''"),
    HostileProgram(
        "replaces the comparison",
        FINDS_THE_GRADER + "frame.f_globals['custom_compare_'] = lambda *_: True",
    ),
]
"""Programs made for scorers that run them in the process that knows the outputs."""

HOSTILE_PROGRAMS = [
    *CHEATS,
    HostileProgram("looks everywhere", LOOKS_EVERYWHERE),
    HostileProgram("tells everybody that it passed", TELLS_EVERYBODY),
    HostileProgram("takes over who runs it", TAKES_OVER),
    HostileProgram("lives on", LIVES_ON),
    HostileProgram("leaves at once", "import os\nos._exit(0)"),
    HostileProgram("leaves politely", "raise SystemExit(0)"),
    HostileProgram("prints nothing for ever", "while True: pass"),
    HostileProgram("sleeps", "import time\ntime.sleep(3600)"),
    HostileProgram(
        "sleeps and cannot be interrupted",
        "import signal, time\n"
        "for s in range(1, 32):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except OSError: pass\n"
        "while True:\n"
        "    try: time.sleep(3600)\n"
        "    except BaseException: pass",
    ),
    HostileProgram("closes everything", "import os, time\nos.closerange(0, 99)\ntime.sleep(3600)"),
    HostileProgram("floods output", "while True: print('x' * 100_000)"),
    HostileProgram("floods errors", "import sys\nwhile True: sys.stderr.write('x' * 100_000)"),
    HostileProgram("floods lines", "print('\\n' * 50_000_000)"),
    HostileProgram(
        "forks for ever",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    ),
    HostileProgram(
        "threads for ever",
        "import threading, time\n"
        "while True:\n"
        "    try: threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "    except RuntimeError: pass",
    ),
    HostileProgram("eats memory", "x = []\nwhile True: x.append(bytearray(1 << 24))"),
    HostileProgram("eats memory at once", "bytearray(1 << 45)"),
    HostileProgram(
        "fills the disk",
        "import os\n"
        "for n in range(10**6):\n"
        "    try:\n"
        "        with open(f'/tmp/{n}', 'wb') as f: f.write(os.urandom(1 << 24))\n"
        "    except OSError: break",
    ),
    HostileProgram("kills who runs it", "import os\nos.kill(os.getppid(), 9)"),
    HostileProgram("stops who runs it", "import os\nos.kill(os.getppid(), 19)\nprint(1)"),
    HostileProgram("kills everybody", "import os\nos.kill(-1, 9)"),
    HostileProgram("kills the first process", "import os\nos.kill(1, 9)\nprint(1)"),
    HostileProgram("crashes", "import ctypes\nctypes.string_at(0)"),
    HostileProgram("recurses", "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()"),
    HostileProgram("does not compile", "print(input("),
    HostileProgram("is too deep to compile", "(" * 100_000),
    HostileProgram("takes long to compile", "x = " + "+".join(["1"] * 300_000)),
    HostileProgram("is not text", "\udcff\udcfe\x00"),
    HostileProgram("is empty", ""),
    HostileProgram("is infinite to write", "import sys\nsys.stdout.write(iter(int, 1).__next__)"),
    HostileProgram(
        "equals everything",
        "class Any(str):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = str.__hash__\n"
        "def solve(n): return Any('x')",
        is_call=True,
    ),
    HostileProgram(
        "replaces JSON",
        "import json\njson.dumps = json.dump = lambda *a, **k: None\ndef solve(n): return 1",
        is_call=True,
    ),
    HostileProgram(
        "returns what is infinite",
        "def solve(n):\n    x = []\n    x.append(x)\n    return x",
        is_call=True,
    ),
    HostileProgram(
        "returns what is deep",
        "def solve(n):\n"
        "    import os\n"
        "    for fd in range(3, 20):\n"
        "        try: os.write(fd, b'[' * 60_000)\n"
        "        except OSError: pass\n"
        "    os._exit(0)",
        is_call=True,
    ),
    HostileProgram(
        "returns what is huge", "def solve(n): return [10**4000] * 10_000", is_call=True
    ),
    HostileProgram("has no function", "x = 1", is_call=True),
    HostileProgram("returns nothing", "def solve(n): pass", is_call=True),
    HostileProgram("does not return", "def solve(n):\n    while True: pass", is_call=True),
]

KNOWS = 'n = input()\nprint({"1": "5e1f-c0ffee-3d", "2": "77aa-decaf-91"}[n])\n'
"""Program that knows what cannot be known: it shows that the grader does grade."""
