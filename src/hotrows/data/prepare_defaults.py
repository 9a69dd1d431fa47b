"""The defaults of `prepare`, for the library and the program alike.

They are not in the package `hotrows.data.prepare`, because the program shows them in its help, and importing that
package takes long.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrepareDefaults:
    """The options of `hotrows.data.prepare.prepare`, which explains them."""

    min_count: int = 2
    split: str = "time"
    valid: float = 0.1
    test: float = 0.2
    seed: int = 0
    engine: str = "duckdb"
    memory_limit: str = "4GB"
    on_error: str = "stop"


DEFAULTS = PrepareDefaults()
