"""Where all rows live: a store reads, writes and exchanges records by row number.

`store=` of the modules takes a name in `STORES` or an object that opens a store, such as `hotrows.stores.Ram()`.
"""

from hotrows.stores.base import Store as Store
from hotrows.stores.base import StoreSettings as StoreSettings
from hotrows.stores.base import exchange_by_number as exchange_by_number
from hotrows.stores.contents import Contents as Contents
from hotrows.stores.device import Device as Device
from hotrows.stores.device import DeviceStore as DeviceStore
from hotrows.stores.init import initial_records as initial_records
from hotrows.stores.ram import Ram as Ram
from hotrows.stores.ram import RamStore as RamStore
from hotrows.stores.record import Field as Field
from hotrows.stores.record import RecordLayout as RecordLayout
from hotrows.stores.record import StateField as StateField

STORES: dict[str, type[StoreSettings]] = {"ram": Ram, "device": Device}


def choose_store(store: "str | StoreSettings") -> StoreSettings:
    """The object that a name in STORES stands for; an object with a method `open` stands for itself."""
    if isinstance(store, str):
        if store in STORES:
            return STORES[store]()
    elif not isinstance(store, type) and callable(getattr(store, "open", None)):
        return store
    known = ", ".join(repr(name) for name in STORES)
    raise ValueError(
        f"store is {store!r}: give {known}, hotrows.stores.Ram(), hotrows.stores.Device(), or an object with a method "
        f"open(tables, layout, device, seed, numbering) that returns a hotrows.stores.Store"
    )


def needs_cache(store: StoreSettings) -> bool:
    """Whether rows are cached on the device; False where all of them are there anyway."""
    return bool(getattr(store, "needs_cache", True))


def in_host_memory(store: StoreSettings) -> bool:
    """Whether all rows take host memory."""
    return bool(getattr(store, "in_host_memory", False))
