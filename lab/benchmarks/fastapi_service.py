"""`RUN=… uvicorn fastapi_service:app`: bare_service.py with FastAPI and Pydantic."""

from bare_service import recommend
from fastapi import FastAPI
from pydantic import BaseModel


class Ask(BaseModel):
    users: list[int | str]
    k: int = 20


class Scored(BaseModel):
    item: int | str
    score: float


class Recommendation(BaseModel):
    user: int | str
    items: list[Scored]


app = FastAPI()


@app.post("/v1/recommend")
async def answer(ask: Ask) -> list[Recommendation]:
    return [recommend(user, ask.k) for user in ask.users]
