"""The blocking face has a twin for whatever the log can do, under the same names and with the same signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import polonaise
from polonaise import blocking
from polonaise.client.lease import Lease
from polonaise.client.log import Log
from polonaise.client.producer import Producer
from polonaise.client.receipt import Receipt
from polonaise.client.running import Submission
from polonaise.client.workergroup import WorkerGroup
from polonaise.node.connecting import connect

NOT_FOR_THREADS = {"start", "fail"}
"""`connect` starts it; `fail` is how its host tells it of our own mistakes."""


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def methods(kind: type) -> list[str]:
    return [name for name, value in public(kind).items() if inspect.isfunction(value) and name not in NOT_FOR_THREADS]


@pytest.mark.parametrize("name", methods(Log))
def test_each_method_of_the_log_has_a_twin(name: str) -> None:
    assert shape(getattr(blocking.Log, name)) == shape(getattr(Log, name))
    assert inspect.getdoc(getattr(blocking.Log, name))


@pytest.mark.parametrize("name", ["client_id", "partition_count", "serializer"])
def test_each_attribute_of_the_log_has_a_twin(name: str) -> None:
    assert isinstance(getattr(blocking.Log, name), property)


def test_connect_takes_the_same_options() -> None:
    assert shape(blocking.connect) == shape(connect) == shape(polonaise.connect)


def test_producers_receipts_and_submissions_have_what_theirs_have() -> None:
    assert shape(blocking.Producer.append) == shape(Producer.append)
    for name in methods(Lease):
        assert shape(getattr(blocking.Lease, name)) == shape(getattr(Lease, name))
    for name in methods(WorkerGroup):
        assert shape(getattr(blocking.WorkerGroup, name)) == shape(getattr(WorkerGroup, name))
    assert shape(blocking.Receipt.applied) == shape(Receipt.applied)
    for twin, of in ((blocking.Receipt, Receipt), (blocking.Submission, Submission)):
        assert set(public(of)) <= set(public(twin)), f"{twin} lacks something"
