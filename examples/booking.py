"""A booking service on the web: several workers share one log, and no seat is booked twice.

    pip install 'polonaise[sql]' starlette uvicorn
    uvicorn booking:app --app-dir examples --workers 2

    curl localhost:8000/bookings -H 'Idempotency-Key: 6f1a' -d '{"show": 1, "seat": 7, "guest": "Ada"}'
    curl localhost:8000/shows/1

`BOOKING_LOG` is the log's address (default `embedded:./booking-log`), and `BOOKING_DATABASE` the URL of the view's
database (default `sqlite:///booking.db`). Workers may share a database or have one each.

- A seat that is booked is refused with 409. Of two workers that book a free seat at the same time, the log refuses the
  second one's append, which was built from a stale state. So its context runs again, and gives up.
- A request whose booking was made is answered in the same way when it comes again with the same `Idempotency-Key`, by
  any worker. Another request with that key is refused with 422.
- 503: the log or the database could not be reached in time. Send the request again, with the same key.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert, select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import polonaise
from polonaise.errors import Abandoned, OnceDiffers, PolonaiseError

schema = MetaData()
bookings = Table(
    "bookings",
    schema,
    Column("show", Integer, primary_key=True, autoincrement=False),
    Column("seat", Integer, primary_key=True, autoincrement=False),
    Column("guest", Text, nullable=False),
)


class Bookings(polonaise.SqlView):
    metadata = schema
    once_table = "booking_keys"

    def apply(self, tx: polonaise.Transaction, db: Connection) -> None:
        db.execute(insert(bookings), json.loads(tx.data))


def guest_of(db: Connection, show: int, seat: int) -> str | None:
    return db.scalar(select(bookings.c.guest).where(bookings.c.show == show, bookings.c.seat == seat))


def booked(db: Connection, show: int) -> list[dict[str, Any]]:
    chosen = select(bookings.c.seat, bookings.c.guest).where(bookings.c.show == show).order_by(bookings.c.seat)
    return [dict(row) for row in db.execute(chosen).mappings()]


async def book(tx: polonaise.Draft, view: Bookings, show: int, seat: int, guest: str) -> dict[str, Any] | None:
    """Lock a seat, look whether it is booked, and book it: a transaction context, which may run several times."""
    tx.write_lock("seat", f"{show}/{seat}")
    if await view.read(guest_of, show, seat) is not None:
        tx.abandon(f"seat {seat} of show {show} is booked")
        return None
    booking = {"show": show, "seat": seat, "guest": guest}
    tx.append(json.dumps(booking).encode())
    return booking  # kept with the key: the answer to this request, whenever it comes again


def asked_for(body: bytes) -> tuple[int, int, str]:
    """Return the show, seat and guest in a request's body. Raises `ValueError`, also for what a database can't take."""
    match json.loads(body):
        case {"show": int(show), "seat": int(seat), "guest": str(guest)}:
            if 0 < show < 2**31 and 0 < seat < 2**31 and 0 < len(guest) <= 100 and guest.isprintable():
                return int(show), int(seat), guest  # `true` is an int, too: its lock would be another one
    raise ValueError(body)


async def post_booking(request: Request) -> JSONResponse:
    key, body = request.headers.get("idempotency-key", ""), await request.body()
    if not 0 < len(key) <= 200:
        return JSONResponse({"error": "a header Idempotency-Key is needed, with 1 to 200 letters"}, 400)
    try:
        show, seat, guest = asked_for(body)
    except (ValueError, RecursionError):  # what is no JSON, too
        return JSONResponse({"error": 'the body has to be as {"show": 1, "seat": 7, "guest": "Ada"}'}, 400)
    log, view = request.state.log, request.state.view
    try:
        done = await log.once(key, book, view, show, seat, guest, request=body, partition=0, timeout=5)
    except PolonaiseError as error:
        status = 409 if isinstance(error, Abandoned) else 422 if isinstance(error, OnceDiffers) else 503
        return JSONResponse({"error": error.text}, status)
    return JSONResponse(done.value, 201)


async def get_show(request: Request) -> JSONResponse:
    """Answer with the bookings of a show: all that any worker has answered before this request came are among them."""
    log, view = request.state.log, request.state.view
    try:
        await log.wait_applied(await log.high_water_mark(0, timeout=5), 0, timeout=5)
        return JSONResponse(await view.read(booked, request.path_params["show"]))
    except PolonaiseError as error:
        return JSONResponse({"error": error.text}, 503)


@contextlib.asynccontextmanager
async def life(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Open the log, in each worker. The first one hosts it; when that one ends or dies, another takes over."""
    view = Bookings(os.environ.get("BOOKING_DATABASE", "sqlite:///booking.db"))
    async with polonaise.connect(os.environ.get("BOOKING_LOG", "embedded:./booking-log"), view=view, wait=30) as log:
        yield {"log": log, "view": view}


routes = [Route("/bookings", post_booking, methods=["POST"]), Route("/shows/{show:int}", get_show)]
app = Starlette(routes=routes, lifespan=life)
