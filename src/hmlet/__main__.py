"""`python -m hmlet` (and `torchrun -m hmlet`) is the `hmlet` command."""

from hmlet.cli import run

if __name__ == "__main__":
    run()
