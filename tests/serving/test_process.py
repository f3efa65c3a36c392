"""The service as a process of its own: clients that dawdle, signals, ports, and what stands in the log."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from forked import Forked
from served import Server
from server import HMLET, log_lines

from hmlet.api import Run
from hmlet.serving.settings import Settings, listen

Start = Callable[..., Server]
TOKEN = "a-token-that-must-not-be-logged"


def ask(server: Server, **options: object) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/recommend", json={"users": ["gimp"], "k": 20}, trust_env=False, **options)  # type: ignore[arg-type]


def wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_slow_clients_are_closed_and_the_others_do_not_notice(start: Start, run: Run) -> None:
    server = start(seconds=2)
    begun = time.monotonic()
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    silent, dripping, bodiless = server.connect(), server.connect(), server.connect()
    bodiless.sendall(head + b"\r\n{")
    stop = threading.Event()

    def drip() -> None:
        try:
            for at in range(60):
                if stop.wait(0.5):
                    return
                dripping.sendall(head[at : at + 1])
        except OSError:
            pass

    thread = threading.Thread(target=drip)
    thread.start()
    assert ask(server).json() == run.recommend(["gimp"], 20)
    for client in (silent, dripping):
        with suppress(ConnectionResetError):
            assert client.recv(4096) == b""
    answer = b"".join(iter(lambda: bodiless.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'{"error": {"code": "timeout"' in answer
    stop.set()
    thread.join()
    assert time.monotonic() - begun > 1.5
    assert ask(server).status_code == 200


def test_a_large_body_gets_its_answer_while_it_is_sent(server: Server) -> None:
    with server.connect() as client:
        client.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 300000000\r\n\r\n" + b" " * 4_000_000
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_sigterm_lets_requests_finish(start: Start) -> None:
    server = start()
    body = b'{"users": ["gimp"]}'
    with server.connect() as client:
        client.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body[:5]
        )
        time.sleep(0.3)
        server.process.send(signal.SIGTERM)
        time.sleep(0.3)
        client.sendall(body[5:])
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    log = server.process.wait(30)
    assert server.process.status == 0
    assert "Traceback" not in log


def test_sighup_reads_the_run_again(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "run")
    server = Server(str(tmp_path / "run")).wait_until_ready()
    try:
        before = ask(server).headers["x-hmlet-run"]
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(runs / "second", tmp_path / "run")
        server.process.send(signal.SIGHUP)
        wait_for(lambda: ask(server).headers["x-hmlet-run"] != before)
        assert ask(server).json() == Run.open(runs / "second").recommend(["gimp"], 20)
        (tmp_path / "run" / "factors.safetensors").unlink()
        server.process.send(signal.SIGHUP)
        refused = 'hmlet_reloads_total{outcome="refused"} 1.0'
        wait_for(lambda: refused in httpx.get(f"{server.url}/metrics", trust_env=False).text)
        assert ask(server).status_code == 200
    finally:
        log = server.stop()
    events = [line["event"] for line in log_lines(log)]
    assert events.index("reloaded") < events.index("reload refused")


def test_the_token_reaches_no_log(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    server = start("--token-file", str(tmp_path / "token"))
    assert ask(server).status_code == 401
    assert ask(server, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    httpx.get(f"{server.url}/{TOKEN}?token={TOKEN}", headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False)
    log = server.stop()
    assert TOKEN not in log
    requests = [line for line in log_lines(log) if line["event"] == "request" and line["path"] == "/v1/recommend"]
    assert [line["status"] for line in requests] == [401, 200]
    assert set(requests[0]) >= {"time", "level", "request", "client", "method", "ms"}


@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], ["--host", "::"], ["--token-file", "/nowhere/token"]])
def test_it_refuses_to_start(runs: Path, options: list[str]) -> None:
    server = Server(str(runs / "first"), *options)
    log = server.process.wait()
    assert server.process.status == 2
    assert log.startswith("error: ")
    assert len(log.splitlines()) == 1


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    server = Server(str(tmp_path / "nope"))
    log = server.process.wait()
    assert server.process.status == 2
    assert log.startswith("error: ")
    assert len(log.splitlines()) == 1


def test_it_says_where_it_listens_once_it_does(runs: Path) -> None:
    process = Forked(HMLET, "serve", str(runs / "first"), "--port", "0")
    said = next((line for line in iter(process.line, "") if line.startswith("serving ")), "")
    try:
        address = said.removeprefix(f"serving {runs / 'first'} at ").removesuffix(" (Ctrl-C stops)\n")
        assert httpx.get(f"{address}v1/ready", trust_env=False).status_code == 200
    finally:
        process.send(signal.SIGTERM)
        process.wait(30)


def test_answers_are_not_held_back_for_a_fuller_packet() -> None:
    with listen(Settings(port=0)) as sock:  # asyncio sets TCP_NODELAY on connections of sockets that name TCP
        assert sock.proto == socket.IPPROTO_TCP


def test_a_taken_port_is_one_line(server: Server, runs: Path) -> None:
    other = Server(str(runs / "first"), port=server.port)
    log = other.process.wait()
    assert other.process.status == 2
    assert log.splitlines()[-1].startswith(f"error: cannot listen on 127.0.0.1:{server.port}")
    assert "Traceback" not in log
