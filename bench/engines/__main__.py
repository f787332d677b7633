"""Engines beside each other: SGLang's training and exactness. Needs `scripts/setup-sglang`."""

from bench import frame
from bench.engines import sglang

if __name__ == "__main__":
    frame.run("engines", {"sglang": sglang.measure})
