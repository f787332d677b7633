"""The drawings of the pages, as SVG: `python -m documentation.drawings` writes docs/images."""
