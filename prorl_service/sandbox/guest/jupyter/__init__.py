"""What runs inside a sandbox next to the execution server, for the `ipython` tool.

`launch` starts IPython's kernel, on the image's Python where that has one; `client` speaks the
Jupyter protocol with it, on the service's own. Both are programs that nothing imports.
"""
