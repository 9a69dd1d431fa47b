"""Small logs in the formats of Criteo, Avazu and Taobao, for tests and the demo.

Ids are skewed as in real logs (Zipf), and labels are drawn from a hidden model, so a trained model has a better AUC.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CRITEO_KAGGLE_IDS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
AVAZU_COLUMNS = {
    "C1": 7, "banner_pos": 7, "site_id": 4737, "site_domain": 7745, "site_category": 26, "app_id": 8552,
    "app_domain": 559, "app_category": 36, "device_id": 268644, "device_ip": 672942, "device_model": 8251,
    "device_type": 5, "device_conn_type": 4, "C14": 2626, "C15": 8, "C16": 9, "C17": 435, "C18": 4, "C19": 68,
    "C20": 172, "C21": 60,
}  # fmt: skip
AVAZU_HEX = {
    "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id", "device_ip",
    "device_model",
}  # fmt: skip

_CHUNK_ROWS = 65_536
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def write_criteo_log(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a log like Criteo's: label, 13 integers, 26 categories, tab-separated, no header.

    About a tenth of the integers and of the categories of some columns are missing. A file whose name ends in `.gz` is
    compressed.
    """
    random = np.random.default_rng(seed)
    presence = random.uniform(0.7, 1.0, size=39)
    scales = random.uniform(1.0, 5.0, size=13)
    with _open(path) as file:
        for num in _chunks(num_rows):
            hidden = np.zeros(num)
            fields: list[Bytes] = []
            for column in range(13):
                value = np.expm1(random.exponential(scales[column] / 2, size=num)).astype(np.int64) - (column == 1)
                value = np.minimum(value, 9_999_999)
                present = random.random(num) < presence[column]
                hidden += np.where(present, np.log1p(np.maximum(value, 0)) - scales[column] / 2, 0) * _effect(column, 0)
                fields.append(_decimal(value, present))
            for column, num_ids in enumerate(CRITEO_KAGGLE_IDS):
                ids = _zipf(random, num_ids, num)
                present = (random.random(num) < presence[13 + column]) | (num_ids < 100)
                hidden += np.where(present, _effects(column, ids), 0) * 0.35
                fields.append(_hex(_hash(ids + (column << 40)), present))
            label = random.random(num) < _sigmoid(hidden - 1.4)
            file.write(_lines([_decimal(label.astype(np.int64)), *fields], b"\t"))


def write_avazu_log(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a log like Avazu's: CSV with a header, ordered by hour, over three days."""
    random = np.random.default_rng(seed)
    first = np.datetime64("2014-10-21T00", "h")
    num_done = 0
    with _open(path) as file:
        file.write(",".join(["id", "click", "hour", *AVAZU_COLUMNS]).encode() + b"\n")
        for num in _chunks(num_rows):
            row = np.arange(num_done, num_done + num)
            hour = first + (row * 72 // max(num_rows, 1)).astype("timedelta64[h]")
            hidden = 0.3 * np.sin((hour.astype(np.int64) % 24) / 24 * 2 * np.pi)
            fields: list[Bytes] = []
            for column, (name, num_ids) in enumerate(AVAZU_COLUMNS.items()):
                ids = _zipf(random, num_ids, num)
                hidden = hidden + _effects(column, ids) * 0.35
                fields.append(_hex(_hash(ids + (column << 40))) if name in AVAZU_HEX else _decimal(ids + 100 * column))
            click = random.random(num) < _sigmoid(hidden - 1.8)
            date = np.datetime_as_string(hour, unit="h")
            stamp = np.array([f"{at[2:4]}{at[5:7]}{at[8:10]}{at[11:13]}" for at in date.tolist()]).astype(np.int64)
            head = [_decimal(row + 10**15), _decimal(click.astype(np.int64)), _decimal(stamp)]
            file.write(_lines([*head, *fields], b","))
            num_done += num


def write_taobao_log(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a log like Taobao's UserBehavior: user, item, category, behavior, timestamp; no header, user by user."""
    random = np.random.default_rng(seed)
    names = np.array([b"pv", b"cart", b"fav", b"buy"], dtype="S4").view(np.uint8).reshape(4, 4)
    user = np.sort(_zipf(random, max(num_rows // 20, 2), num_rows)) + 1
    time = 1_511_539_200 + random.integers(0, 9 * 86_400, size=num_rows)
    order = np.lexsort((time, user))
    with _open(path) as file:
        for start in range(0, num_rows, _CHUNK_ROWS):
            part = order[start : start + _CHUNK_ROWS]
            item = _zipf(random, 100_000, len(part))
            category = _hash(item) % 1_000
            hidden = _effects(0, user[part]) + _effects(1, item) + _effects(2, category)
            wanted = random.random(len(part)) < _sigmoid(hidden - 2)
            behavior = np.where(wanted, random.integers(1, 4, size=len(part)), 0)
            columns = [user[part], item + 1, category + 1]
            fields = [*(_decimal(values) for values in columns), names[behavior], _decimal(time[part])]
            file.write(_lines(fields, b","))


def _open(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return cast(IO[bytes], gzip.open(path, "wb", compresslevel=1)) if path.suffix == ".gz" else path.open("wb")


def _chunks(num_rows: int) -> Iterator[int]:
    for start in range(0, num_rows, _CHUNK_ROWS):
        yield min(_CHUNK_ROWS, num_rows - start)


def _zipf(random: np.random.Generator, num_ids: int, size: int) -> Ints:
    """Ids from 0, where the frequency of id k is proportional to about 1 / (k + 1)."""
    return (np.power(num_ids + 1.0, random.random(size)).astype(np.int64) - 1).clip(0, num_ids - 1)


def _hash(values: Ints) -> Ints:
    """A 32-bit hash of each value."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(32)).astype(np.int64)


def _effects(column: int, ids: Ints) -> Floats:
    """The effect of each id on the hidden model's logit: roughly normal, and the same in every log."""
    bits = _hash(ids + (column << 48) + 7)
    return (((bits & 0xFFFF) + (bits >> 16)) / 65_536.0 - 1.0) * 2.4


def _effect(column: int, id: int) -> float:
    return float(_effects(column + 100, np.array([id]))[0]) * 0.2


def _sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))


def _hex(values: Ints, present: npt.NDArray[np.bool_] | None = None) -> Bytes:
    """Eight hexadecimal digits each, uint8 [B, 8]; zeros where a value is not present."""
    digits: Bytes = _HEX_DIGITS[(values[:, None] >> np.arange(28, -4, -4)) & 15]
    return digits if present is None else digits * present[:, None]


def _decimal(values: Ints, present: npt.NDArray[np.bool_] | None = None) -> Bytes:
    """Decimal digits, uint8 [B, width]; zeros where there is no digit."""
    size = np.abs(values)
    width = max(len(str(size.max(initial=0))), 1)
    powers = 10 ** np.arange(width - 1, -1, -1)
    digits = (size[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    digits *= (size[:, None] >= powers) | (powers == 1)
    sign = np.where(values < 0, ord("-"), 0).astype(np.uint8)[:, None]
    text = np.concatenate([sign, digits], axis=1)
    return text if present is None else text * present[:, None]


def _lines(fields: list[Bytes], delimiter: bytes) -> bytes:
    """Lines of text from columns of characters, without their zero bytes."""
    num = len(fields[0])
    parts: list[Bytes] = []
    for number, field in enumerate(fields):
        end = delimiter if number + 1 < len(fields) else b"\n"
        parts += [field, np.full((num, 1), end[0], dtype=np.uint8)]
    text: Bytes = np.concatenate(parts, axis=1)
    written: bytes = text[text != 0].tobytes()
    return written
