"""Pack Colossal-AI's CachedEmbedding for a machine that can install nothing: the few files it needs, into peers/.

`python -m benchmarks.peers.pack_cached_embedding`. Of colossalai 0.3.3 (Apache 2.0) the folder cache_embedding without
its parallel variants, and contexttimer 0.3.3 (GPL 3), which it imports. They stay in that folder, which git ignores.
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
            with tarfile.open(Path(temporary, f"{archive}.tar.gz")) as maintenance:
                for member, name in files.items():
                    found = maintenance.extractfile(member)
                    assert found is not None, member
                    target = folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(found.read())
    print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
