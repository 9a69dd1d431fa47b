"""Whether a data set has the vocabulary that a model was trained with, so that its ids stand for the same values."""

import logging
from collections.abc import Mapping

from hotrows.data.dataset import PreparedDataSet
from hotrows.data.schema import DataSet

logger = logging.getLogger("hotrows")


def vocabulary_of(dataset: DataSet) -> dict[str, str] | None:
    """A checksum of the vocabulary of every table. Synthetic data has none, as its ids stand for nothing.

    None if the data was prepared by an earlier version of hotrows, which wrote no such checksums.
    """
    if not isinstance(dataset, PreparedDataSet):
        return {}
    found = dataset.vocabulary_checksums
    return None if found is None else dict(found)


def check_vocabulary(dataset: DataSet, trained: Mapping[str, str] | None, trained_on: str) -> None:
    """Raise ValueError if the ids of a data set stand for other values than those that the model was trained with.

    Args:
        trained: what `vocabulary_of` said of the data that the model was trained on.
        trained_on: the name of that data.
    """
    name = str(dataset.directory) if isinstance(dataset, PreparedDataSet) else dataset.name
    found = vocabulary_of(dataset)
    if found is None or trained is None:
        logger.warning(
            "%s by an earlier version of hotrows, without a checksum of its vocabulary: so it is not known whether an "
            "id of %s stands for the value that the model was trained with",
            f"{name} was prepared" if found is None else "the model was saved", name,
        )  # fmt: skip
        return
    if bool(found) != bool(trained):
        kinds = ("synthetic data", "prepared data") if found else ("prepared data", "synthetic data")
        raise ValueError(
            f"the model was trained on {kinds[0]}, {trained_on}, and {name} is {kinds[1]}: their ids do not stand for "
            "the same values, so evaluate on data like that of the training"
        )
    foreign = [table for table in trained if found.get(table) != trained[table]]
    if foreign:
        tables = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
        raise ValueError(
            f"{name} has another vocabulary than {trained_on} had when the model was trained on it: an id of {tables} "
            "stands for another value. Prepare the log again with the vocabulary of the training: "
            f"hotrows prepare … --vocabulary {trained_on}"
        )
