"""Build src/hmlet/data/embedded/debian.parquet: which packages of Debian 12 depend on which others.

Input is the Packages index of bookworm, component main, amd64 (no security, no updates), as `apt-get update` leaves it:

    python lab/build_debian.py --date 2026-07-11 --packages /var/lib/apt/lists/*bookworm_main_binary-amd64*

or downloaded from https://deb.debian.org/debian/dists/bookworm/main/binary-amd64/Packages.xz.
Users are packages; items are what they name first in each clause of Depends, Pre-Depends, Recommends and Suggests,
without version and architecture; virtual packages count too. The result is the 10-core.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hmlet.data.interactions import encode
from hmlet.data.splits import k_core

FIELDS = ("Depends", "Pre-Depends", "Recommends", "Suggests")
CORE = 10
TARGET = Path(__file__).parents[1] / "src" / "hmlet" / "data" / "embedded" / "debian.parquet"


def read_index(path: Path) -> str:
    """The text of a Packages file, plain, .xz or in the .lz4 form that apt keeps."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes()).decode("utf-8")
    if path.suffix == ".lz4":
        return subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", path], check=True, capture_output=True
        ).stdout.decode("utf-8")
    return path.read_text(encoding="utf-8")


def paragraphs(index: str) -> Iterator[dict[str, str]]:
    """The fields of each package; continuation lines are joined."""
    for paragraph in index.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", paragraph, flags=re.MULTILINE))
        if fields:
            yield fields


def first_alternatives(clauses: str) -> Iterator[str]:
    """The package that each clause names first: `a (>= 1) | b, c:any` gives a and c."""
    for clause in clauses.split(","):
        name = re.match(r"[a-z0-9][a-z0-9+.-]*", clause.strip())
        if name:
            yield name.group()


def build(index: str, date: str) -> pa.Table:
    """The table of user, item and their descriptions, 10-core, sorted."""
    packages = {fields["Package"]: fields for fields in paragraphs(index)}
    pairs = sorted(
        {
            (name, other)
            for name, fields in packages.items()
            for field in FIELDS
            for other in first_alternatives(fields.get(field, ""))
            if other != name
        }
    )
    number = {name: at for at, name in enumerate(sorted(set(packages).union(*pairs)))}
    user, _ = encode("user", np.array([number[user] for user, _ in pairs], dtype=np.int64))
    item, _ = encode("item", np.array([number[item] for _, item in pairs], dtype=np.int64))
    kept, _ = k_core(user, item, CORE)
    users, items = zip(*(pairs[at] for at in kept), strict=True)
    description = {name: fields["Description"].partition("\n")[0] for name, fields in packages.items()}
    table = pa.table(
        {
            "user": pa.array(users).dictionary_encode(),
            "item": pa.array(items).dictionary_encode(),
            "user_name": pa.array([description[name] for name in users]).dictionary_encode(),
            "item_name": pa.array([description.get(name, name) for name in items]).dictionary_encode(),
        }
    )
    return table.replace_schema_metadata(
        {
            "source": "Debian 12 (bookworm), main, amd64: Packages index",
            "release_date": date,
            "core": str(CORE),
            "licence": "package metadata of the Debian project; see LICENSE-NOTE.txt",
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--packages", type=Path, required=True, help="the Packages index")
    parser.add_argument("--date", required=True, help="the release's date, from the InRelease file beside the index")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    table = build(read_index(options.packages), options.date)
    pq.write_table(table, options.out, compression="zstd", compression_level=19)
    users, items = (len(table[side].unique()) for side in ("user", "item"))
    sys.stdout.write(
        f"{options.out}: {users} users, {items} items, {table.num_rows} pairs, {options.out.stat().st_size} bytes\n"
    )


if __name__ == "__main__":
    main()
