"""`RUN=… uvicorn bare_service:app`: the obvious service, which bench_serve.py compares hmlet with."""

import os

import msgspec
import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from starlette.responses import Response
from starlette.routing import Route, Router

RUN = os.environ["RUN"]
FACTORS = load_file(f"{RUN}/factors.safetensors")
USERS, ITEMS = (pq.read_table(f"{RUN}/data/{side}.parquet")["id"].to_pylist() for side in ("users", "items"))
INDEX = {user: at for at, user in enumerate(USERS)}
PAIRS = pq.read_table(f"{RUN}/data/interactions.parquet", columns=["user", "item"]).sort_by("user")
SEEN = np.split(PAIRS["item"].to_numpy(), np.searchsorted(PAIRS["user"].to_numpy(), np.arange(1, len(USERS))))


class Ask(msgspec.Struct):
    users: list[int | str]
    k: int = 20


def recommend(user: int | str, k: int) -> dict[str, object]:
    scores_I = FACTORS["items"] @ FACTORS["users"][INDEX[user]]
    scores_I[SEEN[INDEX[user]]] = -np.inf
    best = np.argpartition(-scores_I, k)[:k]
    best = best[np.argsort(-scores_I[best])]
    return {"user": user, "items": [{"item": ITEMS[item], "score": float(scores_I[item])} for item in best]}


async def answer(request) -> Response:
    ask = msgspec.json.decode(await request.body(), type=Ask)
    return Response(msgspec.json.encode([recommend(user, ask.k) for user in ask.users]), media_type="application/json")


app = Router([Route("/v1/recommend", answer, methods=["POST"])])
