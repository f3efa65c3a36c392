"""How the service is started, and what it refuses: the limits of one request and of all together."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path

from hmlet.errors import ConfigError
from hmlet.system.spelling import option

BACKLOG = 2048  # connections that wait to be accepted
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """The most that one request may hold, and all together. What a request may say is in its schema."""

    body_bytes: int = 1 << 20
    pairs: int = 100_000  # users × k: some 6 MB of JSON
    in_flight: int = 128  # ordinary requests that wait or compute; the next one is refused with 503
    large: int = 64  # calls for many users or the gate map that wait for the first part of their answer, likewise
    large_bodies: int = 16  # bodies over 64 KiB that are being received, likewise
    seconds: float = 10.0  # to receive a head, to receive a body, to compute, and for a client that reads nothing
    load_seconds: float = 300.0  # to load and check a run that is to be swapped in


@dataclass(frozen=True)
class Settings:
    """Where to listen, whom to let in, and what may be loaded."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    allow_hosts: tuple[str, ...] = ()
    reload_root: Path | None = None  # runs below it may be swapped in over HTTP
    approximate: bool = False
    compare: tuple[Path, ...] = ()  # runs of the same data, which the explorer shows beside the served one
    workers: int = 1  # processes that share the address
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
        if self.reload_root is not None and not self.reload_root.is_dir():
            raise ConfigError(
                f"{option('reload_root')} {self.reload_root} is not a directory",
                "name the one that has the runs to swap in",
            )

        if self.workers < 1:
            raise ConfigError(f"{option('workers', self.workers)} cannot serve", "use 1 or more")

    def address(self, port: int) -> str:
        """Where it listens; the port behind port 0 is not known before."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which a request may call this service; any other is a page that rebound its DNS name to us."""
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, self.host, *self.allow_hosts))


def listen(settings: Settings) -> socket.socket:
    """A socket at the address; one that is taken is the user's to solve."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # asyncio turns off Nagle's algorithm only where the protocol is named; with it an answer waits for 40 ms.
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        return sock
    except (OSError, UnicodeError) as error:
        where = f"cannot listen on {settings.host}:{settings.port} ({getattr(error, 'strerror', error)})"
        raise ConfigError(where, f"choose another {option('host')} or {option('port')}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
