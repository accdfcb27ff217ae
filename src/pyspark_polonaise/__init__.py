"""What Spark finds by itself: the format `polonaise`. Loads next to nothing, for Spark imports it in every session."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from polonaise.spark.source import PolonaiseSource
        except ImportError as error:  # one module that can't be imported would take all other formats with it
            raise AttributeError(f"the format polonaise is not there: {error}") from error
        return PolonaiseSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
