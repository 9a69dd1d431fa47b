"""Reads and checks `dataset.json`, the description of a prepared data set."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows.data.checksums import ADVICE, SECTIONS, VOCABULARY_CHECKSUMS, Section, check_description, read_sections
from hotrows.data.schema import SPLITS, Column, Schema
from hotrows.data.shapes import SHAPES
from hotrows.data.synthetic import PREFIX

FORMAT = 1
DESCRIPTION = "dataset.json"


@dataclass(frozen=True)
class Description:
    """The content of `dataset.json`. Files are named by their paths in the directory.

    Args:
        files: the shards of every split.
        vocabularies: the file of every table's vocabulary.
        sizes, checksums: the bytes and the SHA-256 of every file; empty if an earlier version has prepared the data.
        sections: the sections of every shard in the order of the file, the footer last; empty likewise.
        vocabulary_checksums: a checksum of the values and ids of every table; None if an earlier version has prepared
            the data.
    """

    directory: Path
    name: str
    schema: Schema
    num_samples: Mapping[str, int]
    files: Mapping[str, tuple[str, ...]]
    vocabularies: Mapping[str, str]
    sizes: Mapping[str, int]
    checksums: Mapping[str, str]
    sections: Mapping[str, list[Section]]
    vocabulary_checksums: Mapping[str, str] | None

    @property
    def shards(self) -> list[str]:
        return [name for split in SPLITS for name in self.files[split]]

    @property
    def all_files(self) -> list[str]:
        return list(dict.fromkeys([*self.shards, *self.vocabularies.values(), *self.checksums]))


def read_description(directory: Path) -> Description:
    """Read `dataset.json`. Raises if it is missing, damaged or of another format."""
    content = _read(directory)
    path = directory / DESCRIPTION
    try:
        schema = _read_schema(content["schema"])
        names = content.get("vocabularies", {})
        description = Description(
            directory,
            name=str(content["name"]),
            schema=schema,
            num_samples={split: int(content["splits"][split]["num_samples"]) for split in SPLITS},
            files={split: tuple(map(str, content["splits"][split]["files"])) for split in SPLITS},
            # Earlier versions have named these files by their tables.
            vocabularies={table: str(names.get(table, f"vocabulary/{table}.parquet")) for table in schema.tables},
            sizes={name: int(size) for name, size in content.get("sizes", {}).items()},
            checksums={name: str(checksum) for name, checksum in content.get("checksums", {}).items()},
            sections={
                name: read_sections(directory / name, found) for name, found in content.get(SECTIONS, {}).items()
            },
            vocabulary_checksums=_read_texts(content.get(VOCABULARY_CHECKSUMS)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): prepare the data again") from error
    for name in description.all_files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{path} names the file {name!r}, which is outside its directory: prepare the data again")
    return description


def check_sizes(description: Description) -> None:
    """Raise if a shard is missing, or does not have the size that was written."""
    directory = description.directory
    missing = [name for name in description.shards if not (directory / name).is_file()]
    if missing:
        raise ValueError(
            f"{directory}: {len(missing)} shard(s) of its {DESCRIPTION} are missing, the first is "
            f"{directory / missing[0]}; {ADVICE}"
        )
    for name in description.shards:
        found = (directory / name).stat().st_size
        if found != description.sizes.get(name, found):
            raise ValueError(
                f"{directory / name}: this shard has {found:,} bytes, {DESCRIPTION} says {description.sizes[name]:,}; "
                f"{ADVICE}"
            )


def _read(directory: Path) -> dict[str, Any]:
    synthetic = ", ".join(PREFIX + name for name in SHAPES)
    path = directory / DESCRIPTION
    if not directory.exists():
        raise ValueError(
            f"there is no data set {str(directory)!r}: give a directory that `hotrows prepare` has written, "
            f"or one of {synthetic}"
        )
    if not path.is_file():
        raise ValueError(
            f"{directory} is not a prepared data set, it has no {DESCRIPTION}: make one with `hotrows prepare`, "
            f"or use one of {synthetic}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        number = content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): prepare the data again") from error
    if number != FORMAT:
        raise ValueError(
            f"{path} is of format {number}, this version of hotrows reads format {FORMAT}: "
            "update hotrows, or prepare the data again with this version"
        )
    check_description(path, content)
    return dict(content)


def _read_texts(described: dict[str, Any] | None) -> dict[str, str] | None:
    return None if described is None else {table: str(checksum) for table, checksum in described.items()}


def _read_schema(described: dict[str, Any]) -> Schema:
    columns = (
        Column(c["name"], int(c["num_ids"]), c.get("table", ""), int(c.get("max_length", 1)))
        for c in described["categorical"]
    )
    return Schema(tuple(described["dense"]), tuple(columns))
