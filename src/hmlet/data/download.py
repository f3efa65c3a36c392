"""One file from the web to the disk: resumed after a break, retried, bounded in time and size, and whole or absent."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from hmlet.errors import DataError
from hmlet.system.progress import Advance, silent
from hmlet.version import VERSION

STALLED_SECONDS = 30.0  # seconds without a byte before a connection counts as broken
DOWNLOAD_ATTEMPTS = 5
RETRY_SECONDS = 0.5  # seconds before the first retry; doubled each time
MAX_DOWNLOAD_BYTES = 256 << 20  # far above the largest named set: a server that sends without end is refused
_CHUNK = 1 << 16


class _Broken(Exception):
    """A transfer that stopped early and may be taken up again."""


def download(url: str, target: Path, *, advance: Advance = silent, timeout: float | None = None) -> Path:
    """The target, with the content at the URL. What a broken transfer left in `TARGET.part` is kept and continued."""
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url} is not an http or https address", "use an http(s) address or a directory")
    partial = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot write to {target.parent}: {error.strerror}", "set HMLET_CACHE to a directory that you may write to"
        ) from error
    last: Exception | None = None
    for attempt in range(DOWNLOAD_ATTEMPTS):
        if attempt:
            time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        try:
            _transfer(url, partial, advance, STALLED_SECONDS if timeout is None else timeout)
            os.replace(partial, target)
            return target
        except urllib.error.HTTPError as error:
            last = error
            if error.code < 500 and error.code not in (408, 429):
                raise DataError(
                    f"{url} answers {error.code} {error.reason}", "check the address, or give another mirror"
                ) from error
        except (_Broken, OSError, http.client.HTTPException) as error:
            last = error
    raise DataError(
        f"{url} could not be downloaded in {DOWNLOAD_ATTEMPTS} attempts ({last})",
        "try again (the partial download is kept), or give a mirror",
    ) from last


def _transfer(url: str, partial: Path, advance: Advance, timeout: float) -> None:
    """One attempt: ask for what is missing, append it, and see that all of it came."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"hmlet/{VERSION}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing lies beyond what we have: start afresh unless that is the whole file
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return
            partial.unlink()
            raise _Broken("the file has become shorter") from error
        raise
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with partial.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                have += len(chunk)
                if have > MAX_DOWNLOAD_BYTES:
                    raise DataError(f"{url} sends more than {MAX_DOWNLOAD_BYTES >> 20} MiB", "give the right mirror")
                file.write(chunk)
                advance(have, total, partial.stem)
        if total is not None and have < total:
            raise _Broken(f"the connection closed after {have} of {total} bytes")
