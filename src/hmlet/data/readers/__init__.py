"""Interaction files in, rows out: one file per kind of file."""
