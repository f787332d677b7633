"""Data sets: reading their files, rows in one normal form, what preparing one leaves."""
