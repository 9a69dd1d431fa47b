"""What a model sees: embedding bags."""

from hotrows.nn.collection import EmbeddingBagCollection as EmbeddingBagCollection
from hotrows.nn.embedding_bag import EmbeddingBag as EmbeddingBag
