"""The systems people would use instead of hotrows, all behind one face, so that one loop runs each on the same work.

>>> from benchmarks.peers import PEERS
>>> for key, entry in PEERS.items():
...     reason = entry.missing("sgd", device)
...     peer = None if reason else entry.make(sizes, 128, 0.015, "sgd", 0.1, 16384, device, frequencies)

The binaries of the peers are not part of this repository; `packed.py` says where they are looked for.
"""

from .base import Peer as Peer
from .base import PeerMissing as PeerMissing
from .registry import PEERS as PEERS
from .registry import Entry as Entry
