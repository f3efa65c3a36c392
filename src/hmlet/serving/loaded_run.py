"""The run that is served: loaded and proved before a request sees it, and swapped as one object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hmlet.analysis.gates import class_size, gate_share
from hmlet.data import Csr, Dataset, Vocabulary
from hmlet.data.interactions import Id
from hmlet.errors import ConfigError, HmletError, RunError
from hmlet.ranking.evaluation import KNOWN, seen_items
from hmlet.ranking.scoring import Histories
from hmlet.ranking.top_k import allowed_items
from hmlet.recommend.answers import Recommendation, SimilarItems, scored_items
from hmlet.recommend.explanation import Explanation
from hmlet.recommend.recommender import Recommender
from hmlet.runs.choices import CLASSES, Choices
from hmlet.runs.directory import FACTORS
from hmlet.serving import schemas
from hmlet.serving.approximate import Approximate
from hmlet.serving.errors import Refusal
from hmlet.system.files import replacing
from hmlet.version import VERSION

Indices = npt.NDArray[np.int64]
Entry = dict[str, int | str | None]  # a node as JSON: its id under "user" or "item", its name, its degree
SIMILAR_TOGETHER = 32  # items: their scores of all items are in memory at once
EXACT_IN_JAVASCRIPT = 2**53 - 1
TIMED_K = 20
TIMED_USERS = 16  # ranked at the start, to know how long one takes in a group


class LoadedRun:
    """One run and what the service answers from it."""

    def __init__(self, run: Recommender, path: Path, *, approximate: bool = False, shared: Path | None = None) -> None:
        """Make a run ready; `shared` is a directory through which several processes map one copy of its embeddings."""
        self._shared_files: list[Path] = []
        if shared is not None and run.directory.item_weights() is None:
            checksum = run.record.files[FACTORS][0]
            self._shared_files = [shared / f"{checksum}-{side}.npy" for side in ("users", "items")]
            run.factors = tuple(map(_mapped, run.factors, self._shared_files))  # type: ignore[assignment]
        run.data = _with_ids_for_javascript(run.data)
        self.run, self.path, self.data = run, path, run.data
        files = run.record.files
        learned = files.get(FACTORS) or files.get("model.safetensors")
        if learned is None:
            raise RunError(f"{path} records neither {FACTORS} nor model.safetensors", "train it again")
        self.name = f"{run.record.model}-{learned[0][:12]}"
        self.seen: Csr = seen_items(self.data, KNOWN)
        self.approximate = Approximate(run.factors, self.seen) if approximate else None
        self._seconds_per_user = float("inf")  # for lists of TIMED_K
        # What every recommendation needs is made now. `warm` makes the rest, which is too much for a start to wait for.
        self._prove("a recommendation", lambda: self.recommend(np.arange(min(TIMED_USERS, self.data.n_users)), TIMED_K))
        self._prove("a look at its items", lambda: self.data.items.indices([self.data.items.id(0)]).tolist())

    def warm(self) -> None:
        """Ask one question of each kind. Later ones find what they need ready, and a run that cannot answer shows here.

        Raises a RunError that names the question, whatever is wrong with the run.
        """
        popular = self.data.items.id(int(self.degrees["item"].argmax()))
        users, items = ([each.id(0), each.id(len(each) - 1)] for each in (self.data.users, self.data.items))
        questions: dict[str, Callable[[], object]] = {
            "a recommendation": lambda: self.recommend(np.array([0, self.data.n_users - 1]), 1),
            "a new user": lambda: self.run.recommend_new([[popular]], 1),
            "similar items": lambda: self.similar([popular], 1),
            "an explanation": lambda: [self.explain(user, item) for user, item in zip(users, items, strict=True)],
            "a search": lambda: [self.search("user", "", 1), self.search("item", "", 1), self.history(0, 1)],
            "the gate map": lambda: self.overview(1),
            "its description": lambda: [self.describe(), self.name.encode("ascii").decode()],
        }
        for question, ask in questions.items():
            self._prove(question, ask)

    def _prove(self, question: str, ask: Callable[[], object]) -> None:
        """Raise a RunError unless the run has an answer that JSON can carry; a run may say that it lacks a feature."""
        try:
            with suppress(ConfigError):
                msgspec.json.encode(ask())
        except HmletError:
            raise
        except Exception as error:
            raise RunError(f"{self.path} cannot answer {question} ({error!r:.200})", "train it again") from error

    def remove_shared(self) -> None:
        """Remove the copy of the embeddings; processes that have mapped it keep it."""
        for file in self._shared_files:
            file.unlink(missing_ok=True)

    # -- answers --------------------------------------------------------------------------------------------------

    def recommend(self, users: Indices, k: int, allowed_I: Tensor | None = None) -> list[Recommendation]:
        """The top-k of each user: the offline answer, or the approximate one if the service was started for that.

        Filtered lists are always exact: an index proposes items without knowing the filter.
        """
        start = time.perf_counter()
        if self.approximate is None or allowed_I is not None:
            lists = self.run.lists_of(users, k, allowed_I)
        else:
            lists = self._approximate_lists(self.approximate, users, k)
        seconds = (time.perf_counter() - start) / len(users)
        self._seconds_per_user = min(self._seconds_per_user, seconds / max(1.0, k / TIMED_K))
        return lists

    def seconds(self, users: int, k: int) -> float:
        """How long the ranking of some users takes, from the fastest so far; longer lists take longer."""
        return users * max(1.0, k / TIMED_K) * self._seconds_per_user

    def _approximate_lists(self, index: Approximate, users: Indices, k: int) -> list[Recommendation]:
        ids, found = self.data.users.ids_at(users), (index.top_k(user, k) for user in users.tolist())
        return [
            {"user": user, "items": scored_items(self.data.items, items, scores)}
            for user, (items, scores) in zip(ids, found, strict=True)
        ]

    def similar(self, items: Sequence[Id], k: int) -> list[SimilarItems]:
        """The items most like each of these."""
        blocks = (items[start : start + SIMILAR_TOGETHER] for start in range(0, len(items), SIMILAR_TOGETHER))
        return [each for block in blocks for each in self.run.similar_items(block, k)]

    def explain(self, user: Id, item: Id) -> Explanation:
        return self.run.explain(user, item)

    def known(self, side: str, ids: Iterable[Id], warnings: dict[str, None] | None = None) -> list[int]:
        """The indices of ids. Unknown ids are added to the warnings; without a place for these, they are refused."""
        vocabulary, found = self.vocabulary(side), []
        for value in ids:
            index = vocabulary.find(value)
            if index is not None:
                found.append(index)
                continue
            unknown = f"{side} {str(value)[:100]!r} is not in the data set"
            if warnings is None:
                raise Refusal(404, unknown, f"look it up with GET /v1/{side}s", "unknown-id")
            warnings[unknown] = None
        return found

    def allowed(
        self, allow: Sequence[Id] | None, deny: Sequence[Id] | None, warnings: dict[str, None] | None
    ) -> Tensor | None:
        """Which items a filter lets through; None without a filter."""
        if allow is None and deny is None:
            return None
        known = (None if ids is None else self.known("item", ids, warnings) for ids in (allow, deny))
        return allowed_items(self.data.n_items, *(None if ids is None else np.array(ids, np.int64) for ids in known))

    # -- looking around -------------------------------------------------------------------------------------------

    def vocabulary(self, side: str) -> Vocabulary:
        return self.data.users if side == "user" else self.data.items

    def entry(self, side: str, index: int) -> Entry:
        """A node by its own id, and its name where it has one."""
        vocabulary = self.vocabulary(side)
        if vocabulary.names is None:
            return {side: vocabulary.id(index)}
        return {side: vocabulary.id(index), "name": vocabulary.name(index)}

    def search(self, side: str, query: str, limit: int, offset: int = 0) -> list[Entry]:
        """Nodes whose id or name has the query in it, whatever the case; ids that begin with it come first.

        The order is always the same, so `offset` pages through it.
        """
        vocabulary = self.vocabulary(side)
        ids = self._searchable[side]
        begins = pc.starts_with(ids, query, ignore_case=True)
        has = pc.match_substring(ids, query, ignore_case=True)
        if vocabulary.names is not None:
            named = pc.match_substring(vocabulary.names.cast(pa.string()), query, ignore_case=True)
            has = pc.or_(has, pc.fill_null(named, False))
        first, all_found = (np.flatnonzero(mask.to_numpy(zero_copy_only=False)) for mask in (begins, has))
        found = np.concatenate([first, np.setdiff1d(all_found, first, assume_unique=True)])[offset : offset + limit]
        return [{**self.entry(side, int(at)), "degree": int(self.degrees[side][at])} for at in found]

    @cached_property
    def _searchable(self) -> dict[str, pa.Array]:
        return {side: self.vocabulary(side).ids.cast(pa.string()) for side in ("user", "item")}

    def history(self, user: int, limit: int) -> list[Entry]:
        """The items that a user has, in index order."""
        return [self.entry("item", int(item)) for item in self.seen.row(user)[:limit]]

    @cached_property
    def degrees(self) -> dict[str, npt.NDArray[np.int64]]:
        """How many training interactions each user and each item has: what the model was trained on."""
        train = self.data.csr("train")
        return {"user": train.counts, "item": np.bincount(train.items, minlength=self.data.n_items)}

    # -- the gate map ---------------------------------------------------------------------------------------------

    @cached_property
    def _choices(self) -> Choices:
        """What the gates chose; at no layer where the model has none."""
        nodes = self.data.n_users + self.data.n_items
        none = Choices((), np.empty((nodes, 0), dtype=np.bool_), np.empty((nodes, 0), dtype=np.float32))
        return self.run.choices or none

    def overview(self, limit: int) -> schemas.Overview:
        """The gate map: the shares over all nodes, and a sample of at most `limit` nodes, even in degree."""
        chosen, layers, classes_N = self._choices, list(self._choices.layers), self._choices.classes
        degree_N = np.concatenate([self.degrees["user"], self.degrees["item"]])
        order = np.argsort(degree_N, kind="stable")
        sample = np.sort(order[np.linspace(0, len(order) - 1, min(limit, len(order))).astype(np.int64)])
        n_users = self.data.n_users
        return schemas.Overview(
            layers=layers,
            nodes=len(degree_N),
            classes={name.upper(): size.nodes for name, size in class_size(classes_N).items()} if layers else {},
            nonlinear_share=gate_share(chosen),
            sample=[
                schemas.Node(
                    side="user" if node < n_users else "item",
                    id=self.data.users.id(node) if node < n_users else self.data.items.id(node - n_users),
                    degree=int(degree_N[node]),
                    class_=CLASSES[classes_N[node]].upper() if layers else None,
                    probability=[round(float(p), 4) for p in chosen.probability_NL[node]],
                    nonlinear=chosen.nonlinear_NL[node].tolist(),
                )
                for node in map(int, sample)
            ],
        )

    def describe(self) -> schemas.Served:
        """What is served: the run, its data and its measured quality, and how it is searched."""
        record = self.run.record
        return schemas.Served(
            run=self.name,
            model=record.model,
            data=schemas.ServedData(name=record.data.name, users=self.data.n_users, items=self.data.n_items),
            ids=schemas.Ids(user=_kind(self.data.users), item=_kind(self.data.items)),
            factor_size=None if isinstance(self.run.scored[0], Histories) else int(self.run.factors[0].shape[1]),
            valid=None if record.valid is None else dict(record.valid),
            versions={"service": VERSION, "trained_with": record.versions.hmlet},
            named={side: self.vocabulary(side).names is not None for side in ("user", "item")},
            search=schemas.Search(kind="exact") if self.approximate is None else self.approximate.describe(),
        )


def _mapped(embeddings: Tensor, file: Path) -> Tensor:
    """The same numbers, as pages of a file that all processes share."""
    if not file.exists():
        with replacing(file, RunError) as temporary, temporary.open("wb") as opened:
            np.save(opened, embeddings.numpy())
    return torch.from_numpy(np.load(file, mmap_mode="c"))  # copied page by page if written to, which nothing does


def _kind(vocabulary: Vocabulary) -> schemas.Kind:
    return "number" if pa.types.is_integer(vocabulary.ids.type) else "string"


def _with_ids_for_javascript(data: Dataset) -> Dataset:
    """The data set with strings for the ids of a side on which a number is too large for JavaScript to keep."""
    exact = copy(data)
    exact.users, exact.items = map(_for_javascript, (data.users, data.items))
    return exact


def _for_javascript(vocabulary: Vocabulary) -> Vocabulary:
    ids = vocabulary.ids
    if _kind(vocabulary) == "string" or not len(ids):
        return vocabulary
    least, most = (value.as_py() for value in pc.min_max(ids).values())
    if least >= -EXACT_IN_JAVASCRIPT and most <= EXACT_IN_JAVASCRIPT:
        return vocabulary
    return Vocabulary(vocabulary.kind, ids.cast(pa.string()), vocabulary.names)
