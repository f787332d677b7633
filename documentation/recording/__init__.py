"""The terminal recording of the demo: what it printed, and an animated SVG of that."""
