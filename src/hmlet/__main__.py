"""The `hmlet` command, also as `python -m hmlet` and `torchrun -m hmlet`."""

import signal

# Until `run` has handlers of its own, a signal ends the process without a traceback: there is nothing to clean up yet.
for number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def run() -> None:
    """Import the commands, which takes a while, and run the one that was asked for."""
    from hmlet import cli

    cli.run()


if __name__ == "__main__":
    run()
