"""The defaults of `prepare`, for the library and the program alike.

They are not in the package `hotrows.data.prepare`, because the program shows them in its help, and importing that
package takes long.
"""

from dataclasses import dataclass

from hotrows.options import option

LARGEST_NUMBER = 2**31 - 1  # what the expressions of the engines take


@dataclass(frozen=True)
class PrepareDefaults:
    """The options of `hotrows.data.prepare.prepare`, with their defaults."""

    min_count: int = option(2, "Values seen less often in training share one id, 'rare'.", least=1, most=LARGEST_NUMBER)
    split: str = option(
        "time",
        "What the test is: by time the last part of the log, by day the last day or file, or samples drawn at random.",
        choices=("time", "day", "random"),
    )
    valid: float = option(0.1, "Share of the samples for validation.", least=0, below=1)
    test: float = option(0.2, "Share of the samples for the test.", least=0, below=1)
    seed: int = option(0, "Seed of a random split.", least=-LARGEST_NUMBER, most=LARGEST_NUMBER)
    engine: str = option("duckdb", "duckdb, or spark for logs that outgrow one machine.", choices=("duckdb", "spark"))
    memory_limit: str = option("4GB", "Memory the engine may take; the rest goes to disk.")
    on_error: str = option("stop", "What to do with bad lines: stop, or skip and count them.", choices=("stop", "skip"))


DEFAULTS = PrepareDefaults()
