"""The execution server: a small program that runs inside a sandbox and serves its tools.

It imports the standard library and ptyprocess only, and nothing of ours. It runs on the bundled
Python, which is the service's own (>= 3.11). Standard input is its one connection; when that ends
it kills everything it started and exits.

A zygote imports it once, and each sandbox is a fork of a zygote. So modules are imported at the
top of a file: an import in a function would cost every sandbox its time and memory. The modules are
few: each zygote holds them all, and each fork copies their page tables. asyncio would add 4 MB
to 7, and dataclasses 1 MB.
"""
