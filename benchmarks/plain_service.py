"""The service as one writes it first: FastAPI, uvicorn and NumPy. The other side of bench_serve.py.

    python benchmarks/plain_service.py RUN PORT [PARSER LOOP]

It answers POST /v1/recommend for users that the model knows, with the items of `hmlet serve`, and does nothing else: no
limits, no checks beyond those of Pydantic, no metrics, no log.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from hmlet.api import Run
from hmlet.ranking.evaluation import KNOWN, seen_items


class Ask(BaseModel):
    users: list[int | str]
    k: int = 20


def create_app(run: Run) -> FastAPI:
    users_UF, items_IF = (factor.numpy() for factor in run.factors)
    seen = seen_items(run.data, KNOWN)
    index = {user: at for at, user in enumerate(run.data.users.ids.to_pylist())}
    ids = run.data.items.ids.to_pylist()
    app = FastAPI()

    @app.post("/v1/recommend")
    def recommend(ask: Ask) -> list[dict[str, Any]]:
        answers = []
        for user in ask.users:
            at = index[user]
            scores_I = items_IF @ users_UF[at]
            scores_I[seen.row(at)] = -np.inf
            best = np.argpartition(-scores_I, ask.k)[: ask.k]
            best = best[np.argsort(-scores_I[best])]
            answers.append({"user": user, "items": [{"item": ids[i], "score": float(scores_I[i])} for i in best]})
        return answers

    return app


if __name__ == "__main__":
    run, port, parser, loop = [*sys.argv[1:], "h11", "asyncio"][:4]  # what a plain `pip install uvicorn` brings
    app = create_app(Run.open(run))
    uvicorn.run(app, port=int(port), http=parser, loop=loop, log_level="error", access_log=False)
