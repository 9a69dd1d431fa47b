"""Checks the CRC-32 and the length of every member of a gzip file, which the engines do not.

DuckDB compares neither, so it would take damaged data for the log.
"""

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from hotrows.data.prepare.errors import BadInputError
from hotrows.data.prepare.files import is_gzip, last_readable_line

_GZIP = 16 + zlib.MAX_WBITS
_EXPECTED = "a complete .gz: copy or download the file again"
_CHUNK_BYTES = 1 << 20


@contextmanager
def gzip_checked(path: Path) -> Iterator[None]:
    """Check a file in a thread while the block reads it. zlib releases Python's global lock.

    An error of the block that damage has caused is replaced by the error that names the damage.
    """
    if not is_gzip(path):
        yield
        return
    cancelled = Event()
    with ThreadPoolExecutor(1, thread_name_prefix="hotrows-gzip") as pool:
        checking = pool.submit(check_gzip, path, cancelled)
        try:
            yield
        except Exception as error:
            if damage := checking.exception():
                raise damage from error
            raise
        except BaseException:  # an interruption, which must not wait for the rest of the file
            cancelled.set()
            raise
        checking.result()


def check_gzip(path: Path, cancelled: Event | None = None) -> None:
    """Raise if a member is damaged or breaks off, or if something else follows the last one."""
    member, size = 1, path.stat().st_size
    with path.open("rb") as file:
        inflate = zlib.decompressobj(_GZIP)
        begun = False
        while data := file.read(_CHUNK_BYTES):
            while data and not (cancelled and cancelled.is_set()):
                if inflate.eof:
                    inflate, begun = zlib.decompressobj(_GZIP), False
                    member += 1
                begun = True
                try:
                    inflate.decompress(data, 4 * _CHUNK_BYTES)
                except zlib.error as error:
                    raise _damaged(path, member, size - file.tell() + len(data), error) from error
                data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if cancelled and cancelled.is_set():
                return
    if begun and not inflate.eof:
        raise BadInputError(path, "the compressed file breaks off", _EXPECTED, last_readable_line(path))


def _damaged(path: Path, member: int, remaining: int, error: zlib.error) -> BadInputError:
    if "incorrect header check" in str(error) and member > 1:
        found = f"gzip member {member - 1} is followed by bytes that are no gzip member, {remaining:,} before the end"
        return BadInputError(path, found, _EXPECTED)
    return BadInputError(path, f"the compressed data is damaged (gzip member {member}: {error})", _EXPECTED)
