"""The model on paper: memory, time and traffic of a step on graphs that no machine of ours holds.

Memory comes from the planner, which runs the step on tensors without memory. Time is the sum of what each part takes
alone: bytes over bandwidth, operations over peak, traffic over the link. How far real steps stay behind such a sum is
taken from recorded steps on one H200 (bench_largest_graph.py), and device times are divided by that share.
docs/scaling.md has this script's output, and a test compares them.

    python lab/benchmarks/model_scaling.py            the document's paragraph and table
    python lab/benchmarks/model_scaling.py --write    put them into the document
    python lab/benchmarks/model_scaling.py --json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hmlet.config import Recipe, resolve
from hmlet.graph import Sizes
from hmlet.models.hmlet import HmletConfig
from hmlet.system.ranks import Ranks
from hmlet.system.units import readable
from hmlet.training.floor import gate_weights
from hmlet.training.planning import MemoryPlan, memory_plan

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT, BEGIN, END = ROOT / "docs" / "scaling.md", "<!-- model_scaling -->", "<!-- end of model_scaling -->"
RECORD = ROOT / "lab" / "results" / "benchmarks" / "largest_graph_h200_2026-11-15.json"
USERS, ITEMS = 90_000_000, 10_000_000
MEMORY = 141e9  # bytes of an H200, as its data sheet counts
HBM, BF16 = 4.8e12, 989e12  # bytes and operations a second: nominal
NVLINK, INFINIBAND = 450e9, 50e9  # bytes a second and GPU, one way: up to 8 GPUs in a machine, and more
SECTOR = 32  # bytes: the least that a gather reads
SETTINGS = ["train.precision=bfloat16", "train.edge_dropout=0.0", "train.batch_size=8192"]


@dataclass(frozen=True)
class Step:
    """Seconds of one step by part, each rank doing the same."""

    product: float  # gathering neighbours, 2 K times
    gate: float  # dense layers
    state: float  # activations and Adam's state, written and read
    link: float  # exchange between ranks

    @property
    def total(self) -> float:
        return self.product + self.gate + self.state + self.link

    @property
    def longest(self) -> str:
        return max(asdict(self), key=lambda name: getattr(self, name))


def step(recipe: Recipe, sizes: Sizes, ranks: int, plan: MemoryPlan, efficiency: float = 1.0) -> Step:
    """The time of a step, if devices reach a share `efficiency` of their nominal rates."""
    model = recipe.model
    layers, columns = model.layers, model.embedding_size // ranks  # type: ignore[attr-defined]
    width = 2 if recipe.train.precision == "bfloat16" else 4
    kept = 2 * sizes.edges * (1.0 - recipe.train.edge_dropout)
    gathered = 2 * layers * kept * (max(SECTOR, width * columns) + 8)  # a neighbour's row; its number and weight
    operations = 6 * sizes.nodes / ranks * dense_weights(recipe)  # two forward, four backward
    moved = 2 * plan.activations + 28 * sizes.nodes * columns  # Adam: parameter and two moments twice, gradient once
    return Step(
        product=gathered / HBM / efficiency,
        gate=operations / BF16 / efficiency,
        state=moved / HBM / efficiency,
        link=traffic(recipe, sizes, ranks) / (NVLINK if ranks <= 8 else INFINIBAND),
    )


def dense_weights(recipe: Recipe) -> int:
    """The weights of all gates' dense layers."""
    model = recipe.model
    if not isinstance(model, HmletConfig):
        return 0
    return model.types.count("gated") * gate_weights(model.embedding_size, model.gate_hidden)


def traffic(recipe: Recipe, sizes: Sizes, ranks: int) -> float:
    """Bytes that a rank sends a step: the table of docs/scaling.md without its flags."""
    model, share = recipe.model, (ranks - 1) / ranks
    width = 2 if recipe.train.precision == "bfloat16" else 4
    gates = model.types.count("gated") if isinstance(model, HmletConfig) else 0
    exchanged = 4 * share * width * sizes.nodes * model.embedding_size / ranks + 2 * share * 8 * sizes.nodes
    moments = 2 * (ranks - 1) * 8 * sum(model.gate_hidden) if isinstance(model, HmletConfig) else 0
    gradients = 2 * share * 4 * dense_weights(recipe)
    return 4 * share * 4 * (recipe.train.batch_size + 1) + gates * (exchanged + moments) + gradients


def measured() -> dict[str, tuple[float, float]]:
    """Seconds of a recorded step of each model on a large graph, and the share of the nominal rates that this is."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    sizes = Sizes(record["nodes"] // 2, record["nodes"] // 2, record["edges"])
    found = {}
    for name, epoch in record["models"].items():
        recipe, seconds = Recipe.from_toml(epoch["recipe"]), epoch["epoch_seconds"] / epoch["steps_per_epoch"]
        found[name] = seconds, step(recipe, sizes, 1, memory_plan(recipe, sizes, "cuda")).total / seconds
    return found


def rows() -> list[dict[str, object]]:
    """The table: one row a model, number of edges, ranks and embedding size."""
    found = []
    for model, (_, efficiency) in measured().items():
        for edges, ranks, size in ((e, g, d) for e in (10**9, 10**10) for g in (8, 64) for d in (64, 512)):
            recipe = resolve(model, "hmlet", None, [*SETTINGS, f"model.embedding_size={size}"])
            sizes = Sizes(USERS, ITEMS, edges)
            plan = memory_plan(recipe, sizes, "cuda", Ranks(0, ranks))
            taken = step(recipe, sizes, ranks, plan, efficiency)
            training = plan.graph + plan.table + plan.optimizer + plan.activations
            found.append(
                {
                    "model": model,
                    "edges": edges,
                    "ranks": ranks,
                    "D": size,
                    "graph": plan.graph,
                    "state": plan.table + plan.optimizer,
                    "activations": plan.activations,
                    "training": training,
                    "evaluation": plan.ranking,
                    "fits": training <= MEMORY,
                    "sent": traffic(recipe, sizes, ranks),
                    "seconds": {**asdict(taken), "total": taken.total},
                    "longest": taken.longest,
                }
            )
    return found


def table() -> str:
    """The rows as Markdown."""
    lines = [
        "| model | edges | GPUs | D | graph | state | activations | sum | evaluation | sent | step | longest part |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        sums = f"**{readable(row['training'])}**" if row["fits"] else readable(row["training"])  # type: ignore[arg-type]
        sizes = [readable(int(row[name])) for name in ("graph", "state", "activations")]  # type: ignore[call-overload]
        cells = [row["model"], f"{row['edges']:.0e}".replace("e+", "e"), row["ranks"], row["D"], *sizes, sums]
        cells += [readable(row["evaluation"]), readable(int(row["sent"]))]  # type: ignore[arg-type, call-overload]
        cells += [f"{row['seconds']['total']:.2f} s", row["longest"]]  # type: ignore[index]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def text() -> str:
    """What the document says between its two marks."""
    record, found = json.loads(RECORD.read_text(encoding="utf-8")), measured()
    steps = " and ".join(f"{1e3 * seconds:.0f} ms ({name})" for name, (seconds, _) in found.items())
    shares = " and ".join(f"{100 * share:.0f} %" for _, share in found.values())
    graph = f"{record['nodes'] / 1e6:.0f} million nodes and {record['edges'] / 1e6:.0f} million edges"
    return (
        f"On one H200 a step on a graph of {graph} took {steps} at\nD = {record['dim']}, and the sum above is {shares}"
        f" of that ([record](../lab/results/benchmarks/{RECORD.name})).\n"
        f"Each model's device times below are divided by its share.\n\n{table()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.json:
        print(json.dumps({"measured": measured(), "rows": rows()}))
    elif options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text()}\n{END}{rest.partition(END)[2]}")
    else:
        print(text())


if __name__ == "__main__":
    main()
