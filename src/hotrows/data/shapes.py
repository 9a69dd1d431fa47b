"""The shapes of the papers' data sets: columns, table sizes, and how skewed each table's lookups are.

Table sizes are those of the full logs: Criteo Kaggle 33,762,577 ids, Criteo Terabyte with its usual cap of 40 M ids a
table 187,767,399, and Avazu 9,445,823 in its 13 named columns (its 8 anonymous ones are dense here, as in FreqCache).

Exponents and offsets (`Skew`) were fitted by benchmarks/fit_synthetic.py to samples of the logs. Those of Criteo Kaggle
were then shifted, by the same amount for all larger tables, so that deduplication over all tables keeps 26, 21, 17 and
13% of lookups in batches of 1024, 2048, 4096 and 8192, as HECA measured on the full log; they give 26.1, 21.0, 16.7 and
13.2%. For Criteo Terabyte only 10,000 samples were available, so the tails of its tables are uncertain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hotrows.data.skew import Skew


@dataclass(frozen=True)
class ShapeColumn:
    name: str
    num_ids: int
    skew: Skew


@dataclass(frozen=True)
class Shape:
    """The shape of a data set to imitate. Its days are equally long, and the last one is half valid, half test."""

    columns: tuple[ShapeColumn, ...]
    num_dense: int
    num_samples: int
    num_days: int
    click_rate: float


def _columns(rows: Sequence[tuple[str, int, float, float]]) -> tuple[ShapeColumn, ...]:
    return tuple(ShapeColumn(name, num_ids, Skew(exponent, offset)) for name, num_ids, exponent, offset in rows)


CRITEO_KAGGLE = Shape(
    _columns([
        ("C1", 1_460, 2.091, 1.072),
        ("C2", 583, 3.098, 59.456),
        ("C3", 10_131_227, 1.224, 5.054),
        ("C4", 2_202_608, 1.313, 5.983),
        ("C5", 305, 2.641, 1.079),
        ("C6", 24, 4.603, 0.964),
        ("C7", 12_517, 1.580, 185.815),
        ("C8", 633, 2.258, 0.910),
        ("C9", 3, 4.734, 0.223),
        ("C10", 93_145, 1.342, 9.263),
        ("C11", 5_683, 1.985, 237.241),
        ("C12", 8_351_593, 1.254, 7.091),
        ("C13", 3_194, 1.636, 82.123),
        ("C14", 27, 5.030, 5.129),
        ("C15", 14_992, 2.095, 227.930),
        ("C16", 5_461_306, 1.286, 7.946),
        ("C17", 10, 1.141, 0.339),
        ("C18", 5_652, 2.392, 141.236),
        ("C19", 2_173, 1.569, 0.331),
        ("C20", 4, 3.752, 6.593),
        ("C21", 7_046_547, 1.264, 6.643),
        ("C22", 18, 4.718, 0.892),
        ("C23", 15, 5.515, 3.677),
        ("C24", 286_181, 1.445, 7.844),
        ("C25", 105, 5.109, 8.076),
        ("C26", 142_572, 1.382, 0.658),
    ]),
    num_dense=13,
    num_samples=45_840_617,
    num_days=7,
    click_rate=0.256,
)  # fmt: skip

CRITEO_TERABYTE = Shape(
    _columns([
        ("C1", 39_884_406, 1.238, 0.849),
        ("C2", 39_043, 1.155, 0.433),
        ("C3", 17_289, 1.241, 20.089),
        ("C4", 7_420, 1.328, 0.191),
        ("C5", 20_263, 1.279, 0.776),
        ("C6", 3, 2.857, 0.043),
        ("C7", 7_120, 1.357, 22.676),
        ("C8", 1_543, 1.898, 10.540),
        ("C9", 63, 4.732, 3.077),
        ("C10", 38_532_951, 1.224, 0.491),
        ("C11", 2_953_546, 1.294, 0.313),
        ("C12", 403_346, 1.122, 1.451),
        ("C13", 10, 1.250, 1.200),
        ("C14", 2_208, 1.550, 0.218),
        ("C15", 11_938, 1.463, 5.643),
        ("C16", 155, 3.936, 2.709),
        ("C17", 4, 0.640, 0.158),
        ("C18", 976, 1.851, 0.506),
        ("C19", 14, 5.041, 3.181),
        ("C20", 39_979_771, 1.230, 0.737),
        ("C21", 25_641_295, 1.249, 0.475),
        ("C22", 39_664_984, 1.222, 0.559),
        ("C23", 585_935, 1.279, 0.093),
        ("C24", 12_972, 1.289, 14.894),
        ("C25", 108, 4.024, 2.419),
        ("C26", 36, 4.721, 4.162),
    ]),
    num_dense=13,
    num_samples=4_373_472_329,
    num_days=24,
    click_rate=0.034,
)  # fmt: skip

AVAZU = Shape(
    _columns([
        ("C1", 7, 4.846, 0.782),
        ("banner_pos", 7, 4.797, 0.381),
        ("site_id", 4_737, 1.709, 2.135),
        ("site_domain", 7_745, 1.814, 2.308),
        ("site_category", 26, 5.181, 2.349),
        ("app_id", 8_552, 1.586, 0.517),
        ("app_domain", 559, 3.503, 2.211),
        ("app_category", 36, 4.604, 1.658),
        ("device_id", 2_686_408, 1.220, 0.045),
        ("device_ip", 6_729_486, 0.890, 6.658),
        ("device_model", 8_251, 1.862, 44.831),
        ("device_type", 5, 4.929, 0.546),
        ("device_conn_type", 4, 5.031, 0.818),
    ]),
    num_dense=8,
    num_samples=40_428_967,
    num_days=10,
    click_rate=0.170,
)  # fmt: skip

SHAPES = {"criteo-kaggle": CRITEO_KAGGLE, "criteo-terabyte": CRITEO_TERABYTE, "avazu": AVAZU}
