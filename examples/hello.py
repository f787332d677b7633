"""A group of rollouts over plain HTTP: submit it, wait for one, look at its tokens.

prorl serve --backend http://localhost:8000      # an engine: vLLM, or `prorl engine`
python examples/hello.py
"""

import os
import subprocess

import httpx

URL = os.environ.get("PRORL_URL", "http://localhost:8080")
GROUP = {
    "group_id": f"hello-{os.getpid()}",
    "n": 4,
    "task": {
        "task_id": "17-times-3",
        "agent": "math",
        "messages": [{"role": "user", "content": "What is 17 times 3?"}],
        "data": {"answer": "51"},
    },
}


def main() -> None:
    asked = subprocess.run(["prorl", "token"], capture_output=True, text=True, check=True)
    headers = {"Authorization": f"Bearer {asked.stdout.strip()}"}
    with httpx.Client(base_url=URL, headers=headers, timeout=120) as http:
        http.post("/v1/rollouts", json={"groups": [GROUP]}).raise_for_status()
        answer = http.get(f"/v1/rollouts/{GROUP['group_id']}.0", params={"wait_s": 100})
    rollout = answer.raise_for_status().json()
    print(f"{rollout['state']}, reward {rollout['reward']}")
    for turn in rollout["trajectory"]["turns"]:
        print(f"  {turn['stop'] - turn['start']} tokens: {turn['text']!r}")


if __name__ == "__main__":
    main()
