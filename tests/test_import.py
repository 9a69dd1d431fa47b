"""`import hotrows` needs torch and numpy alone, and has no side effects."""

import subprocess
import sys


def test_import_is_light() -> None:
    code = """
import sys, threading
import torch
before = set(sys.modules)
threads = threading.active_count()
import hotrows
new = {name.split(".")[0] for name in set(sys.modules) - before}
third_party = {name for name in new if name not in sys.stdlib_module_names and not name.startswith("_")}
assert third_party <= {"hotrows", "torch", "numpy"}, third_party
assert threading.active_count() == threads
"""
    subprocess.run([sys.executable, "-c", code], check=True)
