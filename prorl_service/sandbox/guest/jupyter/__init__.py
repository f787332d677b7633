"""Programs that run inside a sandbox next to the execution server, for the `ipython` tool.

`launch` starts IPython's kernel, on the image's Python if that has one; `client` speaks the Jupyter
protocol with it, on the service's own Python. Both are programs and are never imported.
"""
