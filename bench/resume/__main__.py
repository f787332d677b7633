"""What a killed service loses, and what it costs not to. A quarter of an hour.

`kills`: 20 under 64 rollouts of 10 turns: 40 write files with bash, 16 count in a variable of
IPython, 8 fix two offline SWE instances. `turns_kept_share` is the share of the turns sampled
before a kill that were not sampled again after it, over all kills. `resume_s` is the time from the
start of a service to the next model call of a resumed rollout, with all 64 waiting for sandboxes.
`cpu`: of a turn with and without keeping it. `saving`: of a sandbox of 2 MB.
"""

from bench import frame
from bench.resume import cost, kills

if __name__ == "__main__":
    frame.run("resume", {"kills": kills.measure, "cpu": cost.cpu, "saving": cost.saving})
