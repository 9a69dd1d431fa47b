"""Checksums of a prepared data set: `prepare` writes them to `dataset.json`, readers and `hotrows verify` compare them.

A whole file has a SHA-256. A shard also has a CRC-32 for each section, that is for each row group and for the footer.
So a reader checks what it is about to read without reading the rest of the file.
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotrows.json_text import json_text

ADVICE = "copy the directory again, or prepare the data again"
SECTIONS = "row_group_checksums"
OWN_CHECKSUM = "checksum"
VOCABULARY_CHECKSUMS = "vocabulary_checksums"
_CHUNK_BYTES = 1 << 20


@dataclass
class Section:
    """The bytes of one row group, or of the footer and all else behind the last row group."""

    path: Path
    start: int
    stop: int
    crc32: int
    _checked: bool = field(default=False, compare=False)

    def check(self) -> None:
        """Raise if the bytes are not those that were written. They are read the first time only."""
        if self._checked:
            return
        with self.path.open("rb") as file:
            found = _crc32_of_bytes(file, self.start, self.stop)
        if found != self.crc32:
            raise ValueError(
                f"{self.path}: this shard is damaged, bytes {self.start:,} to {self.stop:,} have the CRC-32 "
                f"{found:08x}, dataset.json says {self.crc32:08x}; {ADVICE}"
            )
        self._checked = True


def sections_of(path: Path) -> list[list[int]]:
    """The sections of a shard in the order of the file, as `[stop, crc32]` each. The first one starts at 0."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    starts = [_start_of_row_group(footer.row_group(number)) for number in range(footer.num_row_groups)]
    last = _stop_of_row_group(footer.row_group(footer.num_row_groups - 1)) if starts else 0
    stops = [*starts[1:], *([last] if starts else []), path.stat().st_size]
    assert stops == sorted(stops), f"{path}: the row groups are not in the order of the file"
    sections, start = [], 0
    with path.open("rb") as file:
        for stop in stops:
            sections.append([stop, _crc32_of_bytes(file, start, stop)])
            start = stop
    return sections


def read_sections(path: Path, described: list[list[int]]) -> list[Section]:
    """The sections of a shard from what `sections_of` has returned."""
    starts = [0, *(stop for stop, _ in described)]
    return [Section(path, start, stop, crc32) for start, (stop, crc32) in zip(starts, described, strict=False)]


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of_vocabulary(path: Path) -> str:
    """The SHA-256 of the values of a vocabulary in the order of their ids.

    Files with the same ids for the same values have the same, whatever their counts are and whichever engine has
    written them.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    lengths, texts = hashlib.sha256(), hashlib.sha256()
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 16, columns=["value"]):
            values = batch.column(0)
            # A value that is missing has the length -1, which tells it from one that is empty.
            lengths.update(pc.fill_null(pc.binary_length(values), -1).to_numpy().astype("<i8"))
            texts.update("".join(value for value in values.to_pylist() if value is not None).encode())
    return hashlib.sha256(lengths.digest() + texts.digest()).hexdigest()


def sha256_of_description(description: Mapping[str, Any]) -> str:
    """The checksum of the content of `dataset.json` itself, whatever its line breaks are."""
    content = {key: value for key, value in description.items() if key != OWN_CHECKSUM}
    return hashlib.sha256(json_text(content, sort_keys=True).encode()).hexdigest()


def check_description(path: Path, description: Mapping[str, Any]) -> None:
    """Raise if the content of `dataset.json` has changed. Earlier versions of hotrows wrote no checksum of it."""
    if SECTIONS not in description and OWN_CHECKSUM not in description:
        return
    found, expected = sha256_of_description(description), description.get(OWN_CHECKSUM)
    if found != expected:
        raise ValueError(f"{path} is damaged or was edited: its SHA-256 is {found}, it says {expected}; {ADVICE}")


def _crc32_of_bytes(file: Any, start: int, stop: int) -> int:
    file.seek(start)
    checksum = 0
    remaining = stop - start
    while remaining > 0 and (chunk := file.read(min(remaining, _CHUNK_BYTES))):
        checksum = zlib.crc32(chunk, checksum)
        remaining -= len(chunk)
    return checksum


def _start_of_row_group(group: Any) -> int:
    return min(_start_of_chunk(group.column(number)) for number in range(group.num_columns))


def _stop_of_row_group(group: Any) -> int:
    chunks = [group.column(number) for number in range(group.num_columns)]
    return max(_start_of_chunk(chunk) + int(chunk.total_compressed_size) for chunk in chunks)


def _start_of_chunk(chunk: Any) -> int:
    offsets = [chunk.data_page_offset]
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        offsets.append(chunk.dictionary_page_offset)
    return int(min(offsets))
