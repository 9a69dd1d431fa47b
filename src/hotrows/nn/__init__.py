"""What a model sees: embedding bags and embeddings."""

from hotrows.nn.collection import EmbeddingBagCollection as EmbeddingBagCollection
from hotrows.nn.embedding import Embedding as Embedding
from hotrows.nn.embedding_bag import EmbeddingBag as EmbeddingBag
