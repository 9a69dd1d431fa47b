"""Where all rows live."""

from hotrows.stores.base import Store as Store
from hotrows.stores.device import DeviceStore as DeviceStore
from hotrows.stores.ram import RamStore as RamStore
from hotrows.stores.record import RecordLayout as RecordLayout
from hotrows.stores.record import StateField as StateField
