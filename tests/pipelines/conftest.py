"""Fixtures of the tests of `polonaise.pipelines`."""

from sparksession import spark

__all__ = ["spark"]
