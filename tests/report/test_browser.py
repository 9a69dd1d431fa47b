"""The report in a real browser: everything is drawn, nothing fails, pointing at a curve shows its values."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from hotrows.report import write_report
from tests.report import runs
from tests.report.test_page import PLOTS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
)

# Writes the shapes that the browser drew for each plot into the page, where --dump-dom finds them.
PROBE = """
<pre id="probe"></pre>
<script>
addEventListener("load", () => {
  const shapes = (figure) => [...figure.querySelectorAll("svg path:not(.grid), svg rect:not(.track)")]
    .filter((shape) => shape.checkVisibility()).map((shape) => {
    const box = shape.getBoundingClientRect();
    const style = getComputedStyle(shape);
    return { d: shape.getAttribute("d"), left: box.left, right: box.right, top: box.top, bottom: box.bottom,
             length: shape.getTotalLength(), painted: style.stroke !== "none" || style.fill !== "none" };
  });
  const plots = [...document.querySelectorAll("[data-plot]")].map((figure) => {
    const { left, right, top, bottom } = figure.getBoundingClientRect();
    return { key: figure.dataset.plot, left, right, top, bottom, shapes: shapes(figure) };
  });
  const legend = () => document.querySelector("[data-plot=loss] .legend").textContent;
  const drawing = document.querySelector("[data-plot=hit-rate] .drawing");
  const point = (type, share) => {
    const box = drawing.getBoundingClientRect();
    drawing.dispatchEvent(new PointerEvent(type, { clientX: box.left + share * box.width, clientY: box.top + 5 }));
    return legend();
  };
  const legends = [legend(), point("pointermove", 0), point("pointermove", 0.5), point("pointerleave", 0.5)];
  const wide = document.documentElement.scrollWidth - innerWidth;
  document.getElementById("probe").textContent = JSON.stringify({ plots, legends, wide });
});
</script>
"""


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """The page's DOM after its scripts ran, and what the browser logged."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def probe(run: Path, profile: Path, *flags: str) -> dict[str, Any]:
    source = write_report(run).read_text(encoding="utf-8")
    page = run / "probed.html"
    page.write_text(source.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    dom, log = browse(page, profile, *flags)
    assert "CONSOLE" not in log, log
    assert 'data-ready="true"' in dom
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


@pytest.mark.parametrize("size", ["1400,900", "500,800"])
def test_every_plot_is_drawn(tmp_path: Path, size: str) -> None:
    run = runs.write_run(tmp_path / "run")
    seen = probe(run, tmp_path / "profile", f"--window-size={size}")
    assert {plot["key"] for plot in seen["plots"]} == PLOTS
    assert seen["wide"] <= 0  # nothing sticks out to the side
    for plot in seen["plots"]:
        assert plot["shapes"], plot["key"]
        for shape in plot["shapes"]:
            assert shape["painted"]
            assert shape["length"] > 0
            assert plot["left"] <= shape["left"] <= shape["right"] <= plot["right"], plot["key"]
            assert plot["top"] <= shape["top"] <= shape["bottom"] <= plot["bottom"], plot["key"]
            assert not re.search("nan|inf|undefined", shape["d"] or "", re.IGNORECASE)
        widest = max(shape["right"] - shape["left"] for shape in plot["shapes"])
        assert widest > 0.5 * (plot["right"] - plot["left"]) or plot["key"] == "contents"


def test_pointing_at_one_chart_shows_the_values_in_all(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", num_lines=40)
    at_rest, first, middle, left = probe(run, tmp_path / "profile")["legends"]
    assert left == at_rest
    assert len({at_rest, first, middle}) == 3
    assert f"raw {runs.read_metrics(run)[0]['loss']:.4f}" in first


def test_interrupted_run_with_bad_loss(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", num_lines=3)
    metrics = [line for line in runs.read_metrics(run) if line["kind"] == "train"]
    metrics[1]["loss"] = float("nan")
    runs.write_metrics(run, metrics)
    (run / "summary.json").unlink()
    (run / "cache.json").unlink()
    drawn = {plot["key"] for plot in probe(run, tmp_path / "profile")["plots"] if plot["shapes"]}
    assert drawn == PLOTS - {"auc", "memory", "contents"}
