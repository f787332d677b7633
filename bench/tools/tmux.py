"""bash in tmux, twice: polled the way OpenHands does, and as fast as tmux can.

`polled` follows BashSession of OpenHands 0.x (runtime/utils/bash.py) step by step: a tmux process
for each of its calls; keys and Enter are sent separately; the pane and its history are captured
immediately and then every 0.5 s until there is one more prompt, which carries the exit code and
more as JSON; then the screen is cleared, which waits 0.1 s. In its favour: its last version's
smaller screen, and no parsing of each command with bashlex.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.tools.shells import BASH, Run

POLL_S = 0.5
CLEAR_S = 0.1
HISTORY_LINES = "10000"
SIZE = ["-x", "256", "-y", "50"]

_PROMPT_FIELDS = {
    "pid": "$!",
    "exit_code": "$?",
    "username": r"\u",
    "hostname": r"\h",
    "working_dir": "$(pwd)",
    "py_interpreter_path": '$(which python 2>/dev/null || echo "")',
}
_PROMPT_END = "###PS1END###"
_PROMPT = "\n###PS1JSON###\n" + json.dumps(_PROMPT_FIELDS, indent=2) + f"\n{_PROMPT_END}\n"
_PROMPTS = re.compile(f"^###PS1JSON###(.*?){_PROMPT_END}", re.DOTALL | re.MULTILINE)


class _Tmux:
    """Calls of one tmux server."""

    def __init__(self, name: str) -> None:
        self.argv = ["tmux", "-L", f"prorl-bench-{name}-{os.getpid()}", "-f", "/dev/null"]

    def __call__(self, *arguments: str) -> str:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        return subprocess.run(
            [*self.argv, *arguments], capture_output=True, text=True, check=True, env=environment
        ).stdout


@contextmanager
def polled() -> Iterator[Run]:
    tmux = _Tmux("polled")
    tmux("new-session", "-d", *SIZE, ";", "set-option", "-g", "history-limit", HISTORY_LINES)
    try:
        tmux("new-window", "-n", "bash", "/bin/bash")  # the first has the old limit
        prompt = _PROMPT.replace('"', r"\"")
        tmux("send-keys", f'export PROMPT_COMMAND=\'export PS1="{prompt}"\'; export PS2=""')
        tmux("send-keys", "Enter")
        time.sleep(CLEAR_S)
        _clear(tmux)
        yield lambda command: _execute(tmux, command)
    finally:
        tmux("kill-server")


def _clear(tmux: _Tmux) -> None:
    tmux("send-keys", "C-l")
    time.sleep(CLEAR_S)
    tmux("clear-history")


def _capture(tmux: _Tmux) -> str:
    lines = tmux("capture-pane", "-J", "-pS", "-").splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _prompts(pane: str) -> list[re.Match[str]]:
    return [match for match in _PROMPTS.finditer(pane) if _is_json(match.group(1))]


def _is_json(text: str) -> bool:
    """Excludes the command that sets the prompt: while on the screen, it looks like a prompt."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _execute(tmux: _Tmux, command: str) -> str:
    count_before = len(_prompts(_capture(tmux)))
    tmux("send-keys", command)
    tmux("send-keys", "Enter")
    while True:
        pane = _capture(tmux)
        prompts = _prompts(pane)
        if len(prompts) > count_before or pane.rstrip().endswith(_PROMPT_END):
            break
        time.sleep(POLL_S)
    start = prompts[-2].end() if len(prompts) > 1 else 0
    output = pane[start : prompts[-1].start()].lstrip().removeprefix(command)
    _clear(tmux)
    return output.strip()


_MARK = "printf '\\036%d\\036' $?"
_MARKED = re.compile(rb"\\036\d+\\036$")
_OCTAL = re.compile(rb"\\([0-7]{3})")
_NEEDS_ESCAPE = re.compile(r'([\\"$])')


@contextmanager
def control_mode() -> Iterator[Run]:
    """tmux at its best: one connection in control mode, which reports output as it comes."""
    tmux = _Tmux("control")
    environment = {**os.environ, "PS1": ""}
    environment.pop("TMUX", None)
    shell = " ".join(["exec", *BASH, "--noediting"])
    argv = [*tmux.argv, "-C", "new-session", *SIZE, shell]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as client:
        assert client.stdin
        assert client.stdout
        keys, told = client.stdin, client.stdout

        def run(command: str) -> bytes:
            text = _NEEDS_ESCAPE.sub(r"\\\1", f"{command}\n{_MARK}\n").replace("\n", r"\r")
            keys.write(f'send-keys -l "{text}"\n'.encode())
            keys.flush()
            output = bytearray()
            for line in told:
                if line.startswith(b"%output "):
                    output += line.rstrip(b"\n").split(b" ", 2)[2]
                    end = _MARKED.search(output, max(0, len(output) - 16))
                    if end:
                        del output[end.start() :]
                        break
            return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), output)

        try:
            run("PS1= PS2=; stty -echo -opost")
            yield run
        finally:
            client.kill()  # the server would wait for it to read
            tmux("kill-server")
