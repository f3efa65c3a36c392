"""Our best configurations on a benchmark's public split, compared with published results: `python -m lab.board`."""
