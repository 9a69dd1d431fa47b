"""Data sets: prepared logs and synthetic data, behind one protocol (`schema.py`).

`open` is for a training loop of your own; see docs/own-loop.md.
"""

from pathlib import Path

from hotrows.data.schema import Column as Column
from hotrows.data.schema import DataSet as DataSet
from hotrows.data.schema import Loader as Loader
from hotrows.data.schema import Schema as Schema


def open(path: str | Path, *, verify: bool = False) -> DataSet:
    """Open a directory that `hotrows prepare` has written, or synthetic data by its name.

    What is read later is compared with the checksums that `prepare` has written.

    Args:
        verify: compare all files with their checksums now, which reads the whole data set.

    Returns:
        A data set with these attributes and methods:

        - `schema`: the columns. `schema.dense` are names, in the order of `Batch.dense`; `schema.categorical` are
          `Column`s, in the order of `Batch.ids`; `schema.embedding_tables` are the tables for an
          `EmbeddingBagCollection`, whose features are these columns.
        - `num_samples(split)`: how many samples "train", "valid" or "test" has.
        - `counts()`: how often the training split looks up each id, int64 [rows] by table.
        - `loader(split, batch_size, shuffle=False, seed=0, …)`: batches, see `DataSet.loader`.

    Raises:
        ValueError: there is no such data set, or it is damaged. The message says what to do.

    Example::

        data = hotrows.data.open("data")
        bags = hotrows.EmbeddingBagCollection(data.schema.embedding_tables, dim=16, cache="5%")
        for batch in hotrows.lookahead(data.loader("train", 1024, shuffle=True), bags):
            embedded = bags(batch.ids)
    """
    from hotrows.data.dataset import open_dataset

    return open_dataset(path, verify=verify)
