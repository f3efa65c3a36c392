"""The model card: a run's data, metrics, training and limitations."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from hmlet.config.listing import list_models
from hmlet.recommend.recommender import Recommender
from hmlet.system.units import duration

SHOWN = ("ndcg", "recall", "precision")
TEMPLATES = resources.files("hmlet.packaging") / "templates"


def model_card(run: Recommender) -> str:
    """A run's card in Markdown, with the head that the Hugging Face Hub reads."""
    use = (TEMPLATES / "use.md").read_text(encoding="utf-8")
    sections = [_head(run), _title(run), _data(run), _metrics(run), _training(run), _limits(run), use]
    return "\n".join(sections)


def _head(run: Recommender) -> str:
    tags = ["recommender-system", "collaborative-filtering", run.record.model]
    return "\n".join(["---", "library_name: hmlet", "tags:", *(f"  - {tag}" for tag in tags), "---", ""])


def _title(run: Recommender) -> str:
    (summary,) = [each.summary for each in list_models() if each.name == run.record.model]
    return f"# {run.record.model} on {run.record.data.name}\n\n{summary}\n"


def _data(run: Recommender) -> str:
    data, about = run.data, run.data.provenance
    rows = {
        "users": f"{data.n_users:,}",
        "items": f"{data.n_items:,}",
        **{f"{part} interactions": f"{data.count(part):,}" for part in ("train", "valid", "test")},
        "split": about.split,
        "source": about.source,
        "licence": about.licence,
        "fingerprint": f"`{data.fingerprint}`",
    }
    return _table("## Data", "data set", run.record.data.name, rows)


def _metrics(run: Recommender) -> str:
    """Figures of the run, or of the one that chose its epochs."""
    record, refitted = run.record, run.record.refitted_from
    figures: dict[str, Mapping[str, float] | None] = {"validation": record.valid}
    about = "Full ranking: every item is ranked for every user with a held-out item. Training items are left out."
    if refitted is not None:
        figures = {"validation": refitted.valid, "test": refitted.test}
        about += (
            "\n\nThis model was trained on all interactions, so **no test figures exist for it**. Those below are of"
            " the model that chose its number of epochs, trained on the training part alone."
        )
    elif run.data.count("test"):
        figures["test"] = run.evaluate().metrics
    known = {part: found for part, found in figures.items() if found}
    if not known:
        return "## Metrics\n\nNothing was held out, so there are none.\n"
    rows = [f"| {part} | {' | '.join(f'{found[name]:.4f}' for name in SHOWN)} |" for part, found in known.items()]
    head = [f"| part | {' | '.join(f'{name}@20' for name in SHOWN)} |", "|---" * 4 + "|"]
    return "\n".join(["## Metrics", "", about, "", *head, *rows, ""])


def _training(run: Recommender) -> str:
    record, updated = run.record, run.record.updated_from
    rows = {
        "best epoch": f"{record.best_epoch} of {record.epochs}",
        "time": duration(record.timings.training_seconds),
        "device": record.hardware.device,
        "hmlet": record.versions.hmlet,
        "PyTorch": record.versions.torch,
        "commit": record.source.commit,
        "updated": None
        if updated is None
        else f"{updated.interactions:,} interactions, {updated.users:,} users and {updated.items:,} items were added to"
        " an earlier run",
        "note": record.note or None,
    }
    return _table("## Training", "seed", str(record.seed), rows) + f"\n```toml\n{run.recipe.to_toml()}```\n"


def _limits(run: Recommender) -> str:
    return f"""## Limits

- It knows the {run.data.n_users:,} users and {run.data.n_items:,} items of its data. New users get recommendations from
  the items that they have. It knows nothing about items without interactions.
- It learned from interactions alone, and from nothing that happened after them. It repeats their bias, such as that
  towards popular items.
- The figures above are of its own data set and split. They are not comparable with those of other splits.
- **This folder contains the interactions and the ids of all users**, because recommendations leave out what a user
  has. Protect it like the data itself.
"""


def _table(title: str, first: str, value: str, rows: Mapping[str, str | None]) -> str:
    """A table of two columns; rows without a value are left out."""
    shown = [f"| {name} | {text} |" for name, text in rows.items() if text]
    return "\n".join([title, "", f"| {first} | {value} |", "|---|---|", *shown, ""])
