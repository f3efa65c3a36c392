"""The runs that are served: loaded before the first request sees them, warm soon after, and swapped as one object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hmlet.analysis.gates import class_size, gate_share
from hmlet.data import Csr, Vocabulary
from hmlet.data.interactions import Id
from hmlet.errors import ConfigError, HmletError, RunError
from hmlet.ranking.evaluation import KNOWN, seen_items
from hmlet.ranking.scoring import Histories
from hmlet.recommend.answers import Recommendation, SimilarItems, scored_items
from hmlet.recommend.explanation import Explanation
from hmlet.recommend.recommender import Recommender
from hmlet.runs.choices import CLASSES, Choices
from hmlet.runs.directory import FACTORS
from hmlet.serving import schemas
from hmlet.serving.approximate import Approximate
from hmlet.serving.failures import Refusal
from hmlet.version import VERSION

Opener = Callable[[Path], Recommender]
Entry = dict[str, int | str | None]  # a node as JSON: its id under "user" or "item", and what is told of it
SIMILAR_TOGETHER = 32  # items: their scores of all items are in memory at once


class Filter(NamedTuple):
    """Which items may be recommended: those of `allow` (all without it) that are not of `deny`."""

    allow: tuple[Id, ...] | None = None
    deny: tuple[Id, ...] | None = None


EVERYTHING = Filter()


class Served:
    """One run and what the service answers from it."""

    def __init__(self, run: Recommender, path: Path, *, approximate: bool = False) -> None:
        self.run, self.path, self.data = run, path, run.data
        files = run.record.files
        learned = files.get(FACTORS) or files.get("model.safetensors")
        if learned is None:
            raise RunError(f"{path} records neither {FACTORS} nor model.safetensors", "train it again")
        self.name = f"{run.record.model}-{learned[0][:12]}"
        self.seen: Csr = seen_items(self.data, KNOWN)
        self.approximate = Approximate(run.factors, self.seen) if approximate else None
        # What every recommendation needs is made now. `warm` makes the rest, which is too much for a start to wait for.
        self._prove("a recommendation", lambda: self.recommend([self.data.users.id(0)], 1))
        self._prove("a look at its items", lambda: self.data.items.indices([self.data.items.id(0)]).tolist())

    def warm(self) -> None:
        """Ask one question of each kind. Later ones find what they need ready, and a run that cannot answer shows here.

        Raises a RunError that names the question, whatever is wrong with the run.
        """
        popular = self.data.items.id(int(self.degrees["item"].argmax()))
        users, items = ([each.id(0), each.id(len(each) - 1)] for each in (self.data.users, self.data.items))
        questions: dict[str, Callable[[], object]] = {
            "a recommendation": lambda: self.recommend(users, 1),
            "a newcomer": lambda: self.recommend_new([popular], 1),
            "similar items": lambda: self.similar([popular], 1),
            "an explanation": lambda: [self.explain(user, item) for user, item in zip(users, items, strict=True)],
            "a search": lambda: [self.search("user", "", 1), self.search("item", "", 1), self.history(users[0], 1)],
            "the gate map": lambda: self.overview(1).model_dump(),
            "its description": lambda: [self.describe().model_dump(), self.name.encode("ascii").decode()],
        }
        for question, ask in questions.items():
            self._prove(question, ask)

    def _prove(self, question: str, ask: Callable[[], object]) -> None:
        """Raise a RunError unless the run has an answer that JSON can carry; a run may say that it lacks a feature."""
        try:
            with suppress(ConfigError):
                json.dumps(ask(), ensure_ascii=False, allow_nan=False).encode("utf-8")
        except HmletError:
            raise
        except Exception as error:
            raise RunError(f"{self.path} cannot answer {question} ({error!r:.200})", "train it again") from error

    # -- answers --------------------------------------------------------------------------------------------------

    def recommend(self, users: Sequence[Id], k: int, among: Filter = EVERYTHING) -> list[Recommendation]:
        """The top-k of each user: the offline answer, or the approximate one if the service was started for that.

        Filtered lists are always exact: an index proposes items without knowing the filter.
        """
        if self.approximate is None or among != EVERYTHING:
            return self.run.recommend(users, k, KNOWN, allow=among.allow, deny=among.deny)
        answers: list[Recommendation] = []
        for user in users:
            index = int(self.data.users.indices([user])[0])
            items, scores = self.approximate.top_k(index, k)
            scored = scored_items(self.data.items, items, scores)
            answers.append({"user": self.data.users.id(index), "items": scored})
        return answers

    def recommend_new(self, items: Sequence[Id], k: int, among: Filter = EVERYTHING) -> list[Recommendation]:
        """The top-k of someone who has these items and whom the model has never seen."""
        return self.run.recommend_new([items], k, allow=among.allow, deny=among.deny)

    def similar(self, items: Sequence[Id], k: int) -> list[SimilarItems]:
        """The items most like each of these."""
        blocks = (items[start : start + SIMILAR_TOGETHER] for start in range(0, len(items), SIMILAR_TOGETHER))
        return [each for block in blocks for each in self.run.similar_items(block, k)]

    def explain(self, user: Id, item: Id) -> Explanation:
        return self.run.explain(user, item)

    def check_known(self, side: str, ids: Sequence[Id]) -> None:
        """Refuse ids that the run does not have, without the costly search for similar ones that the library does."""
        self.known(side, ids, None)

    def known(self, side: str, ids: Iterable[Id], warnings: list[str] | None) -> list[Id]:
        """The ids that the run has. Others are added to the warnings; without a list for these, they are refused."""
        vocabulary, found = self.vocabulary(side), []
        for value in ids:
            if value in vocabulary:
                found.append(value)
                continue
            unknown = f"{side} {str(value)[:100]!r} is not in the data set"
            if warnings is None:
                raise Refusal(404, unknown, f"look it up with GET /v1/{side}s", "unknown-id")
            if unknown not in warnings:
                warnings.append(unknown)
        return found

    def filter(self, allow: Sequence[Id] | None, deny: Sequence[Id] | None, warnings: list[str] | None) -> Filter:
        """A filter with the ids that the run has; see `known`."""
        lists = (None if ids is None else tuple(self.known("item", ids, warnings)) for ids in (allow, deny))
        return Filter(*lists)

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

    def history(self, user: Id, limit: int) -> list[Entry]:
        """The items that a user has, in index order."""
        row = self.seen.row(int(self.data.users.indices([user])[0]))[:limit]
        return [self.entry("item", int(item)) for item in row]

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
            factor_size=None if isinstance(self.run.scored[0], Histories) else int(self.run.factors[0].shape[1]),
            valid=None if record.valid is None else dict(record.valid),
            versions={"service": VERSION, "trained_with": record.versions.hmlet},
            named={side: self.vocabulary(side).names is not None for side in ("user", "item")},
            search=schemas.Search(kind="exact") if self.approximate is None else self.approximate.describe(),
        )


class Lineup(NamedTuple):
    """The runs that one request is answered from: one, or two that share the users between them."""

    runs: dict[schemas.Arm, Served]
    share: float  # of users whom arm b answers

    def arm(self, *who: Id) -> schemas.Arm:
        """The arm of a user, or of a newcomer by their items: the same one at every request and in every process."""
        if len(self.runs) == 1:
            return "a"
        key = "\0".join(sorted(set(map(str, who)))).encode("utf-8", "surrogatepass")
        return "b" if int.from_bytes(sha256(key).digest()[:8]) < self.share * 2**64 else "a"

    def describe(self) -> schemas.Served:
        """What is served: the run of arm a, and what each arm is if there are two."""
        described = self.runs["a"].describe()
        if len(self.runs) == 1:
            return described
        shares = {"a": 1 - self.share, "b": self.share}
        described.arms = [
            schemas.ServedArm(arm=arm, run=each.name, model=each.run.record.model, share=shares[arm])
            for arm, each in self.runs.items()
        ]
        return described


class Shelf:
    """Holds the runs that are served. A request takes the `lineup` once; a swap replaces a run for later ones.

    `other` is the run of arm b, which answers a `share` of the users.
    """

    def __init__(
        self, opener: Opener, path: Path, *, approximate: bool = False, other: Path | None = None, share: float = 0.0
    ) -> None:
        self.opener, self._approximate = opener, approximate
        self.share = share
        self.runs: dict[schemas.Arm, Served] = {"a": self._open(path)}
        if other is not None:
            self.runs["b"] = self._open(other)

    @property
    def current(self) -> Served:
        """The run of arm a, which answers everything that is not about a user."""
        return self.runs["a"]

    @property
    def lineup(self) -> Lineup:
        return Lineup(dict(self.runs), self.share)

    def _open(self, path: Path) -> Served:
        return Served(self.opener(path), path, approximate=self._approximate)

    def load(self, path: Path | None = None, arm: schemas.Arm = "a") -> Served:
        """Another run, or the same directory read again. It has answered one question of each kind, and waits."""
        served = self._open(path or self.runs[arm].path)
        served.warm()
        return served
