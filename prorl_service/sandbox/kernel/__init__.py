"""What runs inside a sandbox beside the execution server, for the `ipython` tool.

`launch` starts IPython's kernel, on the image's Python where that has one; `client` speaks the
Jupyter protocol with it. Both are programs that nobody imports. `packages` is for the service: what
the two need of its own installation.
"""
