"""hotrows: train recommendation models whose embedding tables are far larger than the GPU's memory, exactly."""

from hotrows import optim as optim
from hotrows import stores as stores
from hotrows.batch import Batch as Batch
from hotrows.batch import Jagged as Jagged
from hotrows.cache.indexes import INDEXES as INDEXES
from hotrows.cache.policies import POLICIES as POLICIES
from hotrows.cache.policies import Access as Access
from hotrows.cache.policies import Policy as Policy
from hotrows.cache.stats import Stats as Stats
from hotrows.cache.transfer import BlockTransmitter as BlockTransmitter
from hotrows.errors import BadIdError as BadIdError
from hotrows.errors import NotFiniteError as NotFiniteError
from hotrows.errors import OutOfMemoryError as OutOfMemoryError
from hotrows.graphs.training_step import GraphedStep as GraphedStep
from hotrows.graphs.training_step import graphed as graphed
from hotrows.loop.lookahead import lookahead as lookahead
from hotrows.nn import EmbeddingBag as EmbeddingBag
from hotrows.nn import EmbeddingBagCollection as EmbeddingBagCollection
from hotrows.simulate import Simulation as Simulation
from hotrows.simulate import simulate as simulate
from hotrows.stores.row_order import RowOrder as RowOrder
from hotrows.table import Table as Table

__version__ = "0.1.0"
