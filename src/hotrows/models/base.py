"""The base class of all models: it holds and checks the shapes of their inputs."""

from torch import Tensor, nn


class Model(nn.Module):
    """A module from dense features and pooled rows to one logit per sample.

    Args:
        num_dense: dense features per sample; 0 if the data has none.
        num_features: bags per sample.
        embedding_dim: the width of the rows, which the embedding bags must have.
    """

    def __init__(self, num_dense: int, num_features: int, embedding_dim: int) -> None:
        super().__init__()
        for name, value, least in [("num_dense", num_dense, 0), ("num_features", num_features, 1)]:
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {value!r}, it must be a whole number from {least} up"
                )
        self.num_dense = num_dense
        self.num_features = num_features
        self.embedding_dim = embedding_dim

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Logits [B] from dense [B, num_dense] and embedded [B, F, embedding_dim]."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(dense, embedded)")

    def check(self, dense: Tensor, embedded: Tensor) -> None:
        """Raise ValueError if a batch does not have the shapes that the model was made for."""
        wanted = (self.num_features, self.embedding_dim)
        if tuple(embedded.shape[1:]) != wanted:
            raise ValueError(
                f"{type(self).__name__}: embedded is {list(embedded.shape)}, give [B, {wanted[0]}, {wanted[1]}]: "
                "embedding bags whose dim is the model's embedding_dim"
            )
        if dense.shape != (embedded.shape[0], self.num_dense):
            raise ValueError(
                f"{type(self).__name__}: dense is {list(dense.shape)}, give [{embedded.shape[0]}, {self.num_dense}]"
            )
