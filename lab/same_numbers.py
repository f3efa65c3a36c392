"""Whether two source trees compute the same numbers, to the last bit.

    same_numbers.py BEFORE AFTER                 both trees, case by case
    same_numbers.py TREE --save FILE             one tree, its checksums stored
    same_numbers.py TREE --against FILE          one tree compared with stored checksums
    same_numbers.py TREE --only 'lightgcn/*'     some cases; --list prints their names

A case trains a model for an epoch on the embedded data set, continues from the checkpoint for another one, and on one
process goes on with an update, ten folded-in users and items, recommendations and an explanation. Cases cover every
model with every loss that it takes, with and without learned popularity, from a random and from a spectral start, on
one and on two processes, and settings that take another path through the code. Losses, validation metrics, embeddings,
gates, checkpoints and answers are compared. A tree is used only by its command line and by `hmlet.Run`, so the trees
may differ in everything else. With `--python OTHER`, the last tree runs by that interpreter: given one tree twice, this
compares two versions of PyTorch.

Checksums of floating-point numbers hold for one kind of processor and one version of PyTorch: a stored file names both.
It has one checksum for each step of a case; two trees side by side are compared file by file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

TRAINED = (
    "hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all", "lightgcn", "lr-gccf", "ngcf", "gc-mc", "pinsage", "bpr",
)  # fmt: skip
SOLVED = ("wrmf", "popularity", "itemknn", "ease", "gf-cf", "cheby-cf")
LOSSES = ("bpr", "softmax", "multinomial", "softmax@k", "bsl")
POPULAR = ("loss.popularity_weight=0.1", "loss.popularity_learned=true")
SHORT = ("train.validate_every=1", "train.schedule=constant")
SMALL = ("model.embedding_size=16", "train.edge_dropout=0.3", "train.batch_size=2048")
NARROW = ("model.gate_hidden=[32,16]",)
MIXED = 'model.gate_types=["linear","gated","non-linear","gated"]'

# Settings that take another path: name, model, settings, numbers of processes.
OTHERS: tuple[tuple[str, str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("small-batch", "lightgcn", ("train.batch_size=512",), (1, 2)),
    ("small-batch", "hmlet-end", ("train.batch_size=512",), (1, 2)),
    ("small-batch", "lr-gccf", ("train.batch_size=512",), (1, 2)),
    ("dot", "lightgcn", ("train.loss=softmax", "loss.similarity=dot", "loss.popularity_weight=0.05"), (1, 2)),
    ("popularity", "hmlet-end", ("train.loss=multinomial", "loss.popularity_weight=0.1"), (1, 2)),
    ("negatives", "lightgcn", ("train.loss=softmax", "loss.negatives=100", *POPULAR), (1, 2)),
    ("negatives", "hmlet-end", ("train.loss=bsl", "loss.negatives=100", *POPULAR), (1, 2)),
    ("negatives", "bpr", ("train.loss=multinomial", "loss.negatives=100", *POPULAR), (1, 2)),
    ("at-k-of-some", "lightgcn", ("train.loss=softmax@k", "loss.negatives=100", *POPULAR), (1, 2)),
    ("ratio", "lightgcn", ("train.loss=multinomial", "loss.temperature_ratio=2", *POPULAR), (1, 2)),
    ("ratio", "hmlet-end", ("train.loss=multinomial", "loss.temperature_ratio=0.5"), (1, 2)),
    ("some-users", "lightgcn", ("train.loss=multinomial", "train.batch_size=300", *POPULAR), (1, 2)),
    ("learned-temperature", "lightgcn", ("train.loss=softmax", "loss.temperature_learned=true", *POPULAR), (1, 2)),
    ("learned-temperature", "bpr", ("train.loss=multinomial", "loss.temperature_learned=true"), (1,)),
    ("falling-temperature", "lightgcn", ("train.loss=softmax", "loss.temperature_end=0.05"), (1,)),
    ("bfloat16", "hmlet-end", ("train.loss=softmax", "train.precision=bfloat16", *POPULAR), (1, 2)),
    ("bfloat16", "lightgcn", ("train.loss=multinomial", "train.precision=bfloat16"), (1,)),
    ("bfloat16-state", "lightgcn", ("train.loss=softmax", "train.optimizer_state=bfloat16", *POPULAR), (1, 2)),
    ("bfloat16-state", "hmlet-end", ("train.loss=multinomial", "train.optimizer_state=bfloat16", *POPULAR), (1, 2)),
    ("l2-weights", "hmlet-end", ("train.l2_weights=true", "train.l2=0.01"), (1, 2)),
    ("l2-weights", "ngcf", ("train.loss=softmax", "train.l2_weights=true", "train.l2=0.01", *POPULAR), (1, 2)),
    ("draw-interaction", "lightgcn", ("train.draw=interaction",), (1,)),
    ("draw-root", "lightgcn", ("train.draw=root",), (1,)),
    ("draw-interaction", "bpr", ("train.loss=multinomial", "train.draw=interaction", *POPULAR), (1,)),
    ("gated-input", "hmlet-end", ("model.nonlinear_input=gated",), (1, 2)),
    ("mixed-layerwise", "hmlet-end", (MIXED, "model.readout=layerwise"), (1, 2)),
    ("mixed-layerwise", "hmlet-all", ("train.loss=softmax", MIXED, "model.readout=layerwise", *POPULAR), (1, 2)),
    ("mixed-gated-input", "hmlet-end", (MIXED, "model.nonlinear_input=gated", "model.activation=tanh"), (1,)),
    ("random-gates", "hmlet-end", ("model.gate_choice=random",), (1, 2)),
    ("straight-through", "hmlet-end", ("model.gate_training=straight-through", "model.activation=relu"), (1, 2)),
    ("noise-free", "hmlet-end", ("model.gate_noise=false", "model.activation=leaky-relu"), (1,)),
    ("soft-ranking", "hmlet-end", ("model.gate_ranking=soft", "model.temperature=formula"), (1, 2)),
    ("noisy-ranking", "hmlet-end", ("model.gate_ranking=noisy", "model.temperature=authors"), (1, 2)),
    ("warm-up", "hmlet-end", ("model.gate_warmup=1",), (1, 2)),
    ("warm-up", "hmlet-all", ("train.loss=multinomial", "model.gate_warmup=1", *POPULAR), (1, 2)),
    ("cosine", "hmlet-end", ("train.schedule=cosine", "train.patience=1"), (1,)),
    ("untransformed", "lr-gccf", ("model.transform=false",), (1, 2)),
    ("no-layers", "lightgcn", ("train.save_layers=false",), (1,)),
    ("sparse", "itemknn", ("model.neighbours=50",), (1,)),
    ("few-weights", "ease", ("model.neighbours=100",), (1,)),
    ("spectral", "wrmf", ("model.start=spectral",), (1,)),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run, and what is done with it."""

    name: str
    arguments: tuple[str, ...]  # of `hmlet train debian`
    ranks: int = 1
    kind: str = "short"  # "short", "killed" in the middle and resumed, or a "whole" training; "loaded": a busy machine


def cases() -> Iterator[Case]:
    """Every case there is."""
    for model, loss, popular, start, ranks in product(TRAINED, LOSSES, (False, True), ("random", "spectral"), (1, 2)):
        if loss == "bpr" and popular:
            continue
        chosen = (f"train.loss={loss}", f"model.start={start}", *(POPULAR if popular else ()))
        name = f"{model}/{loss}{'+popularity' if popular else ''}/{start}/{ranks}"
        yield Case(name, _arguments(model, chosen), ranks)
    for model in SOLVED:
        yield Case(f"{model}/solved/1", _arguments(model, ()))
    for what, model, settings, all_ranks in OTHERS:
        for ranks in all_ranks:
            loss = next((each.partition("=")[2] for each in settings if each.startswith("train.loss=")), "bpr")
            loss = "solved" if model in SOLVED else loss
            yield Case(f"{model}/{loss}/{what}/{ranks}", _arguments(model, settings), ranks)
    often = ("train.checkpoint_seconds=0", "train.batch_size=1024")
    for ranks in (1, 2):
        yield Case(f"hmlet-end/bpr/killed/{ranks}", _arguments("hmlet-end", often), ranks, "killed")
        with_popularity = ("train.loss=softmax", "train.optimizer_state=bfloat16", *often, *POPULAR)
        name = f"lightgcn/softmax+popularity/killed/{ranks}"
        yield Case(name, _arguments("lightgcn", with_popularity), ranks, "killed")
    yield Case(
        "hmlet-end/refit/1",
        ("--model", "hmlet-end", "--refit-all", *_words((*SMALL, *NARROW, "train.epochs=4"))),
        1,
        "whole",
    )
    yield Case("hmlet-end/default/1", (), 1, "whole")
    yield Case("hmlet-end/chosen-loss/1", ("--preset", "fitted"), 1, "whole")
    yield Case("hmlet-end/chosen-loss-under-load/1", ("--preset", "fitted"), 1, "loaded")


def _arguments(model: str, settings: Iterable[str]) -> tuple[str, ...]:
    settings = tuple(settings)
    sized: tuple[str, ...] = SMALL if model in TRAINED else SMALL[:1] if model == "wrmf" else ()
    sized += NARROW if model.startswith("hmlet-") else ()
    kept = [
        each for each in (*SHORT, *sized) if each.partition("=")[0] not in {one.partition("=")[0] for one in settings}
    ]
    return "--model", model, *_words([*kept, *settings])


def _words(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# -- in a process of the tree -----------------------------------------------------------------------------------------


def serve(device: str) -> None:
    """Run the cases that standard input names, each command in a process that is forked from this one.

    Importing PyTorch takes longer than a short case.
    """
    import hmlet

    for name in ("Run", "fit", "update"):
        getattr(hmlet, name)
    print(json.dumps(str(Path(hmlet.__file__).resolve())), flush=True)
    for line in sys.stdin:
        case = next(case for case in cases() if case.name == line.strip())
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found = run_case(case, Path(scratch), device)
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


def run_case(case: Case, scratch: Path, device: str) -> dict[str, str]:
    """Checksums of all that a case leaves, by step and file."""
    run, found = scratch / "run", dict[str, str]()
    train = ["train", "debian", "--device", device, "--out", str(run), *case.arguments]
    if case.kind in ("whole", "loaded"):
        busy = [fork(_spin, scratch) for _ in range(4 if case.kind == "loaded" else 0)]
        command(train, 1, scratch)
        for pid in busy:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return {**_written(run, "trained", scratch), **_answered(run, "trained", scratch)}
    seeded = [*train, "--seed", "7"]
    if case.kind == "killed":
        more = [*seeded, *_words(["train.epochs=4"])]
        command(more, case.ranks, scratch, run)
        command([*more, "--resume"], case.ranks, scratch)
        return _written(run, "resumed", scratch)
    solved = case.name.partition("/")[0] in SOLVED
    extendable = not solved and "train.schedule=constant" in case.arguments
    extendable = extendable and not any(each.startswith("loss.temperature_end") for each in case.arguments)
    epochs = "train.epochs=1" if extendable else "train.epochs=2"
    command([*seeded, *_words([epochs] * (case.name.partition("/")[0] not in SOLVED[1:]))], case.ranks, scratch)
    found |= _written(run, "trained", scratch)
    if extendable:
        longer = ["train", "debian", "--device", device, "--out", str(run), "--extend"]
        command([*longer, *_words(["train.epochs=2"])], case.ranks, scratch)
        found |= _written(run, "extended", scratch)
    if case.ranks > 1:
        return found
    found |= _answered(run, "answers", scratch)
    (scratch / "new.csv").write_text(new_interactions(run), encoding="utf-8")
    updated = scratch / "updated"
    columns = ["--user", "user", "--item", "item", "--device", device]
    command(["update", str(run), str(scratch / "new.csv"), "--out", str(updated), *columns], 1, scratch)
    return {**found, **_written(updated, "updated", scratch), **_answered(updated, "updated answers", scratch)}


def command(arguments: list[str], ranks: int, scratch: Path, killed_in: Path | None = None) -> None:
    """Run `hmlet` with these arguments on some processes; with `killed_in`, until that run has a row of metrics."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pids = []
    for rank in range(ranks):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        group = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own = {**{name: str(value) for name, value in variables.items()}, **group} if ranks > 1 else {}
        pids.append(fork(lambda own=own: _hmlet(arguments, own), scratch))  # type: ignore[misc]
    while killed_in is not None:
        rows = killed_in / "metrics.jsonl"
        if rows.is_file() and rows.read_text(encoding="utf-8").count("\n") >= 1:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.005)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if killed_in is None and any(statuses):
        raise RuntimeError(f"hmlet {' '.join(arguments)}: {(scratch / 'stderr').read_text(encoding='utf-8')[-2000:]}")


def fork(work: Callable[[], None], scratch: Path) -> int:
    """Start a process that does this; its standard streams go to files."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(status)


def _hmlet(arguments: list[str], variables: Mapping[str, str]) -> None:
    """`python -m hmlet`."""
    os.environ.update(variables)
    sys.argv = ["hmlet", *arguments]
    runpy.run_module("hmlet", run_name="__main__", alter_sys=True)


def _spin() -> None:
    while True:
        pass


def _written(run: Path, step: str, scratch: Path) -> dict[str, str]:
    return _in_a_process(lambda: written(run), step, scratch)


def _answered(run: Path, step: str, scratch: Path) -> dict[str, str]:
    return _in_a_process(lambda: answered(run), step, scratch)


def _in_a_process(work: Callable[[], dict[str, str]], step: str, scratch: Path) -> dict[str, str]:
    """What a forked process finds: this one stays without threads."""
    result = scratch / "result"

    def store() -> None:
        result.write_text(json.dumps(work()), encoding="utf-8")

    if os.waitpid(fork(store, scratch), 0)[1]:
        raise RuntimeError((scratch / "stderr").read_text(encoding="utf-8")[-2000:])
    return {f"{step}: {name}": value for name, value in json.loads(result.read_text(encoding="utf-8")).items()}


def written(run: Path) -> dict[str, str]:
    """Checksums of a run's files; the clock's numbers are left out."""
    from safetensors.torch import load_file

    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    said = ("best_epoch", "epochs", "valid", "compared", "note")
    found = {
        "record": digest({key: record.get(key) for key in said}),
        "settings": digest((run / "config.toml").read_text(encoding="utf-8")),
        "metrics": digest([{key: value for key, value in row.items() if key != "seconds"} for row in rows]),
    }
    for path in sorted(run.glob("*.safetensors")):
        found[path.stem] = digest(load_file(path))
    if (run / "gates.parquet").is_file():
        import pyarrow.parquet as pq

        found["gates"] = digest(pq.ParquetFile(run / "gates.parquet").read().to_pydict())
    return found


def answered(path: Path) -> dict[str, str]:
    """Checksums of what a run answers: lists, likeness, an explanation, and ten folded-in users and items."""
    import hmlet

    run = hmlet.Run.open(path)
    users = ids(path)[0]
    known = [users[at] for at in range(0, len(users), len(users) // 10)]
    lists = run.recommend(known, 10)
    best = next(each for each in lists if each["items"])
    liked = [item["item"] for item in best["items"]]
    found = {
        "recommended": digest(list(lists)),
        "similar items": digest(list(run.similar_items(liked[0], 10))),
        "similar users": digest(list(run.similar_users(best["user"], 10))),
    }
    with suppress(hmlet.HmletError):  # a refit has no test part
        found["test"] = digest(run.evaluate("test", "train").metrics)
    try:
        fold = run.fold_in
    except hmlet.HmletError as error:  # random gates, or no stored layers
        return {**found, "refused": digest(type(error).__name__)}
    found["recommended to new"] = digest(list(run.recommend_new([liked[:count] for count in range(1, 11)], 10)))
    found["explained"] = digest(run.explain(best["user"], liked[0]))
    histories = {user: list(fold.own_items(user)) for user in range(len(users))}
    of_item: dict[int, list[int]] = {}
    for user, own in histories.items():
        for item in own:
            of_item.setdefault(item, []).append(user)
    long = [own for own in histories.values() if len(own) > 1]
    found["new users"] = digest(fold.users([own[::2] for own in long[:: max(1, len(long) // 10)][:10]]))
    liking = [of_item[item][::2] for item in sorted(of_item)]
    with suppress(hmlet.HmletError):  # an item-item model takes no new items
        found["new items"] = digest(fold.items(liking[:: max(1, len(liking) // 10)][:10]))
    return found


def ids(run: Path) -> tuple[list[str], list[str]]:
    """The users' and the items' own ids."""
    import pyarrow.parquet as pq

    table = pq.read_table(run / "ids.parquet").to_pydict()
    sides = zip(table["side"], table["id"], strict=True)
    both: dict[str, list[str]] = {"user": [], "item": []}
    for side, own in sides:
        both[side].append(own)
    return both["user"], both["item"]


def new_interactions(run: Path) -> str:
    """A CSV file with new interactions of known users, new users and new items."""
    users, items = ids(run)
    pairs = [(users[at], items[31 * at % len(items)]) for at in range(0, len(users), 40)]
    pairs += [(f"new-user-{at}", items[(97 * at + 7 * each) % len(items)]) for at in range(5) for each in range(4)]
    pairs += [(users[(89 * at + 11 * each) % len(users)], f"new-item-{at}") for at in range(5) for each in range(4)]
    return "\n".join(["user,item", *(f"{user},{item}" for user, item in pairs)]) + "\n"


def digest(value: Any) -> str:
    """A checksum of numbers, texts, tensors, and what is made of them."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()[:16]


def _feed(found: Any, value: Any) -> None:
    if hasattr(value, "untyped_storage"):  # a tensor
        import torch

        tensor = value.detach().cpu().contiguous()
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):  # the order of a file's header may differ
            found.update(str(key).encode())
            _feed(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(str(len(value)).encode())
        for each in value:
            _feed(found, each)
    else:
        found.update(repr(value).encode())


# -- in the process that compares -------------------------------------------------------------------------------------


class Tree:
    """A source tree with a process that runs cases in it."""

    def __init__(self, path: Path, options: argparse.Namespace, python: str = sys.executable) -> None:
        path = path.resolve()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HMLET_")}
        environment = {**inherited, "PYTHONPATH": str(path / "src"), "PYTHONSAFEPATH": "1"}
        environment |= {"OMP_NUM_THREADS": str(options.threads), "PYTHONDONTWRITEBYTECODE": "1"}
        arguments = [python, str(Path(__file__).resolve()), "--serve", "--device", options.device]
        self.process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tempfile.gettempdir(),
        )
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        if not Path(found).is_relative_to(path / "src"):
            raise SystemExit(f"{python} imports {found} instead of {path / 'src'}")
        asked = "import json, torch; print(json.dumps(torch.__version__))"
        self.torch = json.loads(subprocess.check_output([python, "-c", asked]))
        git = shutil.which("git")
        command = [str(git), "-C", str(path), "rev-parse", "HEAD"]
        self.commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() if git else ""

    def run(self, case: Case) -> dict[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(case.name, file=self.process.stdin, flush=True)
        found: dict[str, str] = json.loads(self.process.stdout.readline())
        return found

    def described(self) -> dict[str, str]:
        return {"commit": self.commit, "torch": self.torch, "processor": processor()}


def by_step(found: Mapping[str, str]) -> dict[str, str]:
    """One checksum for each step."""
    steps = dict.fromkeys(name.partition(":")[0] for name in found)
    return {step: digest([[name, found[name]] for name in found if name.partition(":")[0] == step]) for step in steps}


def processor() -> str:
    """What kind of processor this machine has: numbers are the same to the last bit only on one kind."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = dict(line.partition(":")[::2] for line in lines[:30])
        kinds = {key.strip(): value.strip() for key, value in named.items()}
        return " ".join(kinds.get(key, "") for key in ("model name", "cpu family", "model"))
    return platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE")
    parser.add_argument("--only", action="append", help="a pattern of the cases' names, repeatable")
    parser.add_argument("--without", action="append", default=[], help="a pattern of cases to leave out, repeatable")
    parser.add_argument("--list", action="store_true", help="print the cases' names and stop")
    parser.add_argument("--save", type=Path, help="store the last tree's checksums; cases that are there already stay")
    parser.add_argument("--against", type=Path, help="compare with these checksums instead of a first tree")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the last tree")
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.device)
        return 0

    def chosen(name: str) -> bool:
        wanted = any(fnmatch(name, pattern) for pattern in options.only or ["*"])
        return wanted and not any(fnmatch(name, pattern) for pattern in options.without)

    asked = [case for case in cases() if chosen(case.name)]
    if options.list:
        print("\n".join(case.name for case in asked))
        return 0
    if len(options.trees) != 1 + (options.save is None and options.against is None):
        parser.error("give two trees, or one with --save or --against")
    return compare(asked, options)


def compare(asked: list[Case], options: argparse.Namespace) -> int:
    """Run the cases and say of each whether it is the same; returns the exit status."""
    after = Tree(options.trees[-1], options, options.python)
    before = Tree(options.trees[0], options) if len(options.trees) > 1 else None
    stored: dict[str, Any] = {**after.described(), "cases": {}}
    if options.save is not None and options.save.is_file():
        stored = {**json.loads(options.save.read_text(encoding="utf-8")), **after.described()}
    elif options.against is not None:
        stored = json.loads(options.against.read_text(encoding="utf-8"))
        for key in ("torch", "processor"):
            if stored[key] != after.described()[key]:
                print(
                    f"note: {options.against} was made with {key} {stored[key]}, and this is {after.described()[key]}"
                )
    different = []
    for case in asked:
        if options.save is not None and case.name in stored["cases"]:
            continue
        began = time.monotonic()
        found = after.run(case)
        seconds = time.monotonic() - began
        if options.save is not None:
            stored["cases"][case.name] = by_step(found)
            text = json.dumps({**stored, "cases": dict(sorted(stored["cases"].items()))}, indent=0) + "\n"
            options.save.write_text(text, encoding="utf-8")
            print(f"{case.name:<55} {found.get('failed', 'stored')} ({seconds:.1f} s)", flush=True)
            continue
        failure = found.get("failed")
        found = by_step(found) if before is None else found
        expected = stored["cases"].get(case.name, {}) if before is None else before.run(case)
        wrong = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        same = bool(expected) and not wrong and failure is None
        if not same:
            different.append(case.name)
        why = failure or (", ".join(wrong) if expected else "not stored")
        print(f"{case.name:<55} {'the same' if same else 'DIFFERENT: ' + why} ({seconds:.1f} s)", flush=True)
    print(f"{len(asked) - len(different)} of {len(asked)} cases are the same" if options.save is None else "stored")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
