"""The run directory, its record, and what is stored in it."""
