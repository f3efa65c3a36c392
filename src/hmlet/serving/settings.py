"""How the service is started, and what it refuses: the limits of one request and of all together."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.system.spelling import option

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """The most that one request may hold, and all together. What a request may say is in its schema."""

    body_bytes: int = 1 << 20
    pairs: int = 100_000  # users × k: some 6 MB of JSON
    in_flight: int = 32  # ordinary requests that wait or compute; the next one is shed with 503, before it is parsed
    large: int = 256  # calls for many users or the gate map that wait for the first part of their answer, likewise
    seconds: float = 10.0  # to receive the headers, to receive the body, to compute, and for the client to read a part
    answer_seconds: float = 60.0  # for the client to read an answer that the system does not take at once
    load_seconds: float = 300.0  # to load and check a run that is to be swapped in
    connections: int = 4096  # open at once; the next one is closed with 503
    arriving_bytes: int = 16 << 20  # of all large bodies that are still being received; the next one is shed with 503
    unread_bytes: int = 16 << 20  # of all answers that clients have not read yet; beyond it, the oldest is aborted


@dataclass(frozen=True)
class Settings:
    """Where to listen, whom to let in, and what may be loaded."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    allow_hosts: tuple[str, ...] = ()
    reload_root: Path | None = None  # runs below it may be swapped in over HTTP
    approximate: bool = False
    ab: Path | None = None  # a second run, which answers a share of the users
    share: float | None = None
    compare: tuple[Path, ...] = ()  # runs of the same data, which the explorer shows beside the served one
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError("the token is empty or not printable ASCII", "write one line of letters and digits")
        if self.token is not None and self.token != self.token.strip():
            raise ConfigError("the token begins or ends with a space, which no header carries", "take the space away")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"{option('host', self.host)} lets other machines in, and no token is set",
                f"set one with {option('token')} or HMLET_TOKEN, or listen on 127.0.0.1",
            )

        if self.share is not None and (self.ab is None or not 0 < self.share < 1):
            raise ConfigError(
                f"{option('share', self.share)} is not the share of a second run's users",
                f"name the run with {option('ab')}, and a share between 0 and 1",
            )
        if self.reload_root is not None and not self.reload_root.is_dir():
            raise ConfigError(
                f"{option('reload_root')} {self.reload_root} is not a directory",
                "name the one that has the runs to swap in",
            )

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which a request may call this service; any other is a page that rebound its DNS name to us."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self.host, *self.allow_hosts))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
