"""Makes a data set from a raw click log: Parquet shards, vocabularies and `dataset.json`."""

from hotrows.data.prepare.errors import BadInputError as BadInputError
from hotrows.data.prepare.errors import OutputError as OutputError
from hotrows.data.prepare.pipeline import prepare as prepare
from hotrows.data.prepare.report import PrepareReport as PrepareReport
