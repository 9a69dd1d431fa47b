"""`hotrows reproduce`: the tables and figures of papers, measured with hotrows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hotrows.reproduce import freqcache, heca
from hotrows.reproduce.experiment import Experiment
from hotrows.reproduce.scale import Scale


class Paper(NamedTuple):
    title: str
    experiments: Sequence[Experiment]
    scales: Mapping[str, Scale]


PAPERS = {
    "freqcache": Paper(
        "A Frequency-aware Software Cache for Large Recommendation System Embeddings, 2022",
        freqcache.EXPERIMENTS,
        freqcache.SCALES,
    ),
    "heca": Paper(
        "HECA: A Heterogeneous Embedding Caching Algorithm for Multi-GPU CTR Prediction Model Training, 2024",
        heca.EXPERIMENTS,
        heca.SCALES,
    ),
}
