"""Random programs of API calls, compared with a model in float64 and with the same program without a cache."""
