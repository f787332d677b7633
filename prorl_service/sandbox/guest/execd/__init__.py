"""The execution server: a small program that runs inside a sandbox and serves its tools.

It imports nothing of ours, only the standard library and ptyprocess, runs on Python >= 3.8 and is
started with `from execd.server import main`. Standard input is its one connection; when that ends
it kills everything it started and exits. Imports are chosen for start-up time: no asyncio, typing,
dataclasses, argparse or socket (5 ms each at worst, of 20).
"""
