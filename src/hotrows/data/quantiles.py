"""The distribution of synthetic dense features."""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hotrows.data.skew import NUM_QUANTILES


def dense_quantiles(num_dense: int) -> NDArray[np.float32]:
    """NUM_QUANTILES equally likely values of every feature: float32 [num_dense, NUM_QUANTILES].

    They are log(1 + x) of log-normal counts x, with medians from 1 to 55 and tails of different length.
    """
    normal = NormalDist()
    z = np.array([normal.inv_cdf((i + 0.5) / NUM_QUANTILES) for i in range(NUM_QUANTILES)])
    feature = np.arange(num_dense)[:, None]
    counts = np.floor(np.exp(feature % 5 + (0.8 + 0.4 * (feature % 3)) * z))
    return np.asarray(np.log1p(counts), dtype=np.float32)
