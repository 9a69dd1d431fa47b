"""Packs the few files that Colossal-AI's CachedEmbedding needs into peers/, for a machine that can install nothing.

Run `python -m benchmarks.peers.pack_cached_embedding`. It packs the folder cache_embedding of colossalai 0.3.3 (Apache
2.0) without its parallel variants, and contexttimer 0.3.3 (GPL 3), which it imports. Git ignores the folder peers/.
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import packed

LAYERS = "colossalai-0.3.3/colossalai/legacy/nn/parallel/layers/cache_embedding/"
FILES = {
    "colossalai-0.3.3": {
        "colossalai-0.3.3/LICENSE": "LICENSE",
        **{
            f"{LAYERS}{name}.py": f"cache_embedding/{name}.py"
            for name in ("base_embedding", "cache_mgr", "cached_embedding", "copyer")
        },
    },
    "contexttimer-0.3.3": {
        "contexttimer-0.3.3/PKG-INFO": "contexttimer/PKG-INFO",
        "contexttimer-0.3.3/contexttimer/__init__.py": "contexttimer/__init__.py",
    },
}


def main() -> None:
    folder = packed.folder() / "cached_embedding"
    with tempfile.TemporaryDirectory() as temporary:
        for archive, files in FILES.items():
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:", "-d", temporary,
                 archive.replace("-", "==")],
                check=True,
            )  # fmt: skip
            with tarfile.open(Path(temporary, f"{archive}.tar.gz")) as tar:
                for member, name in files.items():
                    found = tar.extractfile(member)
                    assert found is not None, member
                    target = folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(found.read())
    print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
