"""What a run needs: machines, disk and time, from measured costs."""
