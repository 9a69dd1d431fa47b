"""The systems people would use instead of hotrows. They have the same interface, so that one loop can run each of them.

>>> from benchmarks.peers import PEERS
>>> for key, entry in PEERS.items():
...     reason = entry.missing("sgd", device)
...     peer = None if reason else entry.make(sizes, 128, 0.015, "sgd", 0.1, 16384, device, frequencies)

The binaries of the peers are not part of this repository. `packed.py` says where they are expected.
"""

from .base import Peer as Peer
from .base import PeerMissing as PeerMissing
from .registry import PEERS as PEERS
from .registry import Entry as Entry
