"""Fixtures of the tests of `polonaise.spark`."""

from sparksession import spark

__all__ = ["spark"]
