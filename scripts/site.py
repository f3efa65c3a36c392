"""The documentation as a site that needs no network: `python scripts/site.py [OUT]` (`make site`; OUT is build/site).

A page of docs/ links to records, sources and notebooks beside it. So the pages are copied first, the notebooks run, and
every file that a page links to is put on the site. Zensical then builds the copy and fails on a broken link.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
# Pages that live outside docs/, and their names on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "lab/README.md": "laboratory.md",
    "lab/results/runs/README.md": "runs.md",
}
RECORDS = "records"
SHOWN_AS_IS = {".json", ".txt", ".png", ".svg"}  # a browser shows them; other files get .txt appended
WHOLE_FOLDER = 512 << 10  # bytes up to which a linked folder is on the site with all its files
OUTSIDE = re.compile(r"<script src=\"https:[^>]*></script>")  # only search from file:// needs it
LINK = re.compile(r"(\]\(|href=\"|src=\")([^)\"#\s]+)")


class Site:
    """The pages of the site, in a directory that Zensical builds."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.docs = place / "docs"
        self.folders: set[Path] = set()

    def stage(self) -> None:
        """Copy every page, with its links turned to where their targets are on the site."""
        shutil.copytree(ROOT / "docs", self.docs)
        shutil.copy(ROOT / "mkdocs.yml", self.place)
        (self.place / "src").symlink_to(ROOT / "src")  # where mkdocstrings looks
        for page in sorted((ROOT / "docs").rglob("*.md")):
            self.add_page(page, self.docs / page.relative_to(ROOT / "docs"), page.read_text(encoding="utf-8"))
        for name, target in ELSEWHERE.items():
            if name != "README.md":  # docs/index.md takes its place
                self.add_page(ROOT / name, self.docs / target, (ROOT / name).read_text(encoding="utf-8"))
        for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
            target = self.docs / "notebooks" / f"{notebook.stem}.md"
            self.add_page(notebook, target, rendered(executed(notebook, self.place), notebook.name))
            shutil.copy(notebook, target.parent)
        for folder in sorted(self.folders):
            self.list_folder(folder)

    def add_page(self, source: Path, target: Path, text: str) -> None:
        def moved(link: re.Match[str]) -> str:
            found = self.moved(link[2], source, target)
            return link[0] if found is None else link[1] + found

        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(LINK.sub(moved, text), encoding="utf-8")

    def moved(self, link: str, source: Path, target: Path) -> str | None:
        """The link as the site needs it, or None where it can stay; a linked file comes to the site."""
        path = Path(os.path.normpath(source.parent / link))
        if "://" in link or not path.exists() or not path.is_relative_to(ROOT):
            return None
        inside = path.relative_to(ROOT)
        if inside.parts[0] == "docs":
            there = self.docs / inside.relative_to("docs")
        elif str(inside) in ELSEWHERE:
            there = self.docs / ELSEWHERE[str(inside)]
        elif path.suffix == ".ipynb":
            there = self.docs / "notebooks" / f"{path.stem}.md"
        elif path.is_dir():
            self.folders.add(path)
            there = self.docs / RECORDS / inside / "index.html"
        else:
            there = self.bring(path)
        return os.path.relpath(there, target.parent)

    def bring(self, path: Path) -> Path:
        """Put a file of the repository on the site."""
        name = path.name if path.suffix in SHOWN_AS_IS else f"{path.name}.txt"
        there = self.docs / RECORDS / path.relative_to(ROOT).parent / name
        if not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
        return there

    def list_folder(self, folder: Path) -> None:
        """Write a page that lists a folder; small folders come to the site as a whole."""
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        if sum(path.stat().st_size for path in files) <= WHOLE_FOLDER:
            for path in files:
                self.bring(path)
        there = self.docs / RECORDS / folder.relative_to(ROOT)
        there.mkdir(parents=True, exist_ok=True)
        brought = {path.name for path in there.rglob("*") if path.is_file()}
        lines = []
        for path in sorted(files):
            name = path.name if path.suffix in SHOWN_AS_IS else f"{path.name}.txt"
            place = path.relative_to(folder).parent / name
            shown = html.escape(str(path.relative_to(folder)))
            lines.append(f'<li><a href="{place}">{shown}</a>' if (there / place).exists() else f"<li>{shown}")
        title = html.escape(str(folder.relative_to(ROOT)))
        note = "" if len(brought) >= len(files) else "<p>Entries without a link are in the repository only."
        style = "body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
        text = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        text += f"<h1>{title}/</h1>{note}<ul>\n" + "\n".join(lines) + "\n</ul></html>\n"
        (there / "index.html").write_text(text, encoding="utf-8")

    def build(self) -> Path:
        """Build the site, and return its directory."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\nerror: the site is not clean: fix the warnings above")
        built = self.place / "site"
        for page in built.rglob("*.html"):
            page.write_text(OUTSIDE.sub("", page.read_text(encoding="utf-8")), encoding="utf-8")
        return built


def executed(path: Path, place: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs. It runs in a directory of its own; an error in a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": directory}}).execute()
    return notebook


def rendered(notebook: nbformat.NotebookNode, name: str) -> str:
    """A notebook as Markdown: the first heading, a link to the file, then cells and what they put out."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts.extend(shown for output in cell.outputs for shown in _shown(output))
    first, *rest = parts
    return "\n\n".join([first, f"[Download this notebook]({name}){{ .md-button }}", *rest]) + "\n"


def _shown(output: Any) -> Iterator[str]:
    if output.output_type == "stream":
        if output.name == "stdout":
            yield f"```{{ .text .output }}\n{output.text.rstrip()}\n```"
        return
    data = output.data
    if "image/svg+xml" in data:
        yield f'<div class="output">{data["image/svg+xml"]}</div>'
    elif "text/html" in data:  # a table; the site has its own look for them
        table = re.sub(r"<style>.*?</style>| (border|class)=\"\w*\"|\n+", "", data["text/html"], flags=re.DOTALL)
        yield f'<div class="output">{table}</div>'
    elif "text/plain" in data:
        yield f"```{{ .text .output }}\n{data['text/plain'].rstrip()}\n```"


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory))
        site.stage()
        built = site.build()
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, out)
    print(f"open {out / 'index.html'}, or serve it to search: python -m http.server -d {out}")


if __name__ == "__main__":
    main(sys.argv[1:])
