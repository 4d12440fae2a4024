"""The operation that is compared, in FastAPI; http_legation.py has the same."""

from typing import Annotated, Final, Literal

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, ConfigDict, Field

TOKEN: Final = "bench-token"

app = FastAPI()


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    count: Annotated[int, Field(ge=0)] = 1


class NewThing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: Annotated[str, Field(min_length=1, max_length=100)]
    colour: Literal["red", "green", "blue"] = "red"
    parts: list[Part] = []
    note: str | None = None


class Thing(BaseModel):
    id: str
    title: str
    colour: str
    parts: list[Part]
    note: str | None


async def authenticate(authorization: Annotated[str | None, Header()] = None) -> str:
    if authorization != f"Bearer {TOKEN}":
        raise HTTPException(401)
    return "t"


@app.post("/v1/things", status_code=201)
async def create_thing(
    body: NewThing,
    who: Annotated[str, Depends(authenticate)],  # noqa: ARG001
) -> Thing:
    return Thing(id="thing_1", title=body.title, colour=body.colour, parts=body.parts, note=body.note)
