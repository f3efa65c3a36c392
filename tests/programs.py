"""Programs of others around a service: nginx and HAProxy in front of it, and wrk, which asks for more than it holds."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server import free_port

NGINX = """\
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream localhost {{ server 127.0.0.1:{service}; keepalive 8; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://localhost; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
    }}
  }}
}}
"""
HAPROXY = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout http-keep-alive 60s
  http-reuse always
frontend clients
  bind 127.0.0.1:{port}
  default_backend service
backend service
  server one 127.0.0.1:{service} pool-max-conn 8
"""
PROXIES = {"nginx": NGINX, "haproxy": HAPROXY}


def program(name: str) -> str | None:
    """Where a proxy is installed; their usual directory is not on every PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


@contextmanager
def in_front_of(service: int, name: str, folder: Path) -> Iterator[int]:
    """The port of a proxy in front of the service at a port."""
    port, path = free_port(), program(name)
    assert path is not None
    written = folder / f"{name}.conf"
    written.write_text(PROXIES[name].format(folder=folder, port=port, service=service), encoding="utf-8")
    command = [path, "-p", str(folder), "-c", str(written)] if name == "nginx" else [path, "-f", str(written)]
    with open(folder / f"{name}.log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(port, process)
            yield port
        finally:
            process.terminate()


WRK = """\
wrk.method, wrk.body = "POST", '{"users": ["gimp"]}'
wrk.headers["Content-Type"] = "application/json"
"""


@contextmanager
def flooded(port: int, folder: Path, connections: int = 96) -> Iterator[None]:
    """So many clients that ask a service for one user's list again as soon as they have an answer."""
    path, script = program("wrk"), folder / "wrk.lua"
    assert path is not None
    script.write_text(WRK, encoding="utf-8")
    command = [path, "-t1", f"-c{connections}", "-d600s", "-s", str(script), f"http://127.0.0.1:{port}/v1/recommend"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            time.sleep(1)  # until all are connected
            yield
        finally:
            process.kill()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, "the proxy has ended"
            time.sleep(0.05)
    raise AssertionError("the proxy does not listen")
