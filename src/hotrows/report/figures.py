"""The plots of a report. Each shows what the run measured, and says so if nothing was measured."""

from hotrows.report.bars import Bar, bar_list
from hotrows.report.chart import Chart, Series, Style
from hotrows.report.curves import Curve, curve, mean, samples_per_second, smooth, stage_names, stretches
from hotrows.report.run import Run, number
from hotrows.report.scale import position_axis
from hotrows.report.units import byte_unit, count, digits, fixed, percent, size

_MOST_EVALUATIONS = 200
_STAGES = {  # the color of each stage, and what is done in it
    "load": (3, "reading batches"),
    "plan": (4, "finding and moving rows"),
    "wait": (2, "training idle until its batch is there"),
    "train": (1, "forward, backward, update"),
}
_OTHER_STAGE = (5, "")


class Figures:
    """The plots of one run, over one common axis of samples."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lines = run.lines("train")
        self._parts = stretches(self._lines)
        ends = [line["samples"] for kind in ("train", "valid", "test") for line in run.lines(kind)[-1:]]
        self._x = position_axis(max(ends, default=0.0))

    def loss(self) -> str:
        raw = curve(self._parts, "loss")
        num_bad = sum(number(line, "loss") is None for line in self._lines)
        warning = f"The loss was not a finite number in {num_bad} of {len(self._lines)} lines." if num_bad else ""
        series = [
            Series("raw", raw, 1, "faint", at_rest=""),
            Series("train", smooth(raw), 1),
            Series("valid", self._evaluations("valid", "logloss"), 2, "dots"),
            Series("test", self._evaluations("test", "logloss"), 3, "squares"),
        ]
        return Chart("loss", "Loss", "log loss per sample", series, fixed, note=warning).html(self._x)

    def auc(self) -> str:
        series = [
            Series("valid", self._evaluations("valid", "auc"), 2, "dots"),
            Series("test", self._evaluations("test", "auc"), 3, "squares"),
        ]
        chart = Chart("auc", "AUC", "0.5 is chance, 1 perfect", series, fixed, min_span=0.01, highest=1.0)
        return chart.html(self._x)

    def learning_rate(self) -> str:
        series = [Series("rows", curve(self._parts, "lr"), 1), Series("dense part", curve(self._parts, "dense_lr"), 2)]
        return Chart("learning-rate", "Learning rate", "", series, digits, zero=True).html(self._x)

    def hit_rate(self) -> str:
        points = curve(self._parts, lambda values: None if "hit_rate" not in values else 100 * values["hit_rate"])
        overall = number(self._run.summary, "cache", "hit_rate")
        series = [Series("hit rate", points, 1, at_rest=None if overall is None else f"{percent(overall)} overall")]
        unit = "% of a batch's unique rows"
        return Chart("hit-rate", "Hit rate", unit, series, _percent, min_span=10, highest=100).html(self._x)

    def bytes_moved(self) -> str:
        both = {name: curve(self._parts, name) for name in ("bytes_in", "bytes_out")}
        largest = max((y for points in both.values() for _, y in points if y is not None), default=0.0)
        factor, unit = byte_unit(largest)
        series = [
            Series("to the device", _scaled(both["bytes_in"], factor), 1, "area"),
            Series("back to the host", _scaled(both["bytes_out"], factor), 3, "area"),
        ]
        chart = Chart(
            "bytes",
            "Moved",
            f"{unit} per step, stacked",
            series,
            lambda value: size(value * factor),
            zero=True,
            min_span=0.1,
        )
        return chart.html(self._x)

    def stalls(self) -> str:
        total = number(self._run.summary, "cache", "stalls")
        series = [
            Series(
                "steps that waited",
                curve(self._parts, lambda values: None if "stalls" not in values else 100 * values["stalls"]),
                2,
                "area",
                at_rest=None if total is None else f"{count(total)} overall",
            )
        ]
        unit = "% of steps whose rows came late"
        return Chart("stalls", "Stalls", unit, series, _percent, zero=True, min_span=1, highest=100).html(self._x)

    def throughput(self) -> str:
        points = curve(self._parts, samples_per_second)
        overall = number(self._run.summary, "samples_per_second")
        series = [
            Series("raw", points, 1, "faint", at_rest=""),
            Series("smoothed", smooth(points), 1, at_rest=None if overall is None else f"{count(overall)} overall"),
        ]
        return Chart("throughput", "Throughput", "samples per second", series, count, zero=True).html(self._x)

    def stages(self) -> str:
        def over_time(name: str, value: str, color: int, style: Style) -> Series:
            average = mean(self._parts, value)
            at_rest = None if average is None else _milliseconds(average)
            return Series(name, curve(self._parts, value), color, style, at_rest)

        series = [
            over_time(name, f"stages.{name}", _STAGES.get(name, _OTHER_STAGE)[0], "area")
            for name in stage_names(self._parts)
        ]
        if series:
            series.append(over_time("whole step", "step_ms", 0, "dashed"))
        return Chart("stages", "Stages", "ms per step, stacked", series, _milliseconds, zero=True).html(self._x)

    def longest_stage(self) -> str:
        times = {name: mean(self._parts, f"stages.{name}") or 0.0 for name in stage_names(self._parts)}
        total = sum(times.values())
        bars = [
            Bar(name, time, _milliseconds(time), _STAGES.get(name, _OTHER_STAGE)[1], _STAGES.get(name, _OTHER_STAGE)[0])
            for name, time in times.items()
        ]
        if not total:
            return bar_list("longest-stage", "Longest stage", "", [])
        longest = max(times, key=lambda name: times[name])
        step = mean(self._parts, "step_ms")
        if step is not None:
            bars.append(Bar("whole step", step, _milliseconds(step), "from one batch to the next", 0))
        overlap = step is not None and total > 1.05 * step
        text = "The stages add up to more than a step: they work on different batches at once." if overlap else ""
        return bar_list("longest-stage", f"Longest stage: {longest}", "ms per step", bars, text)

    def memory(self) -> str:
        summary = self._run.summary
        host, device, num_rows = (number(summary, name) for name in ("host_memory", "device_memory", "num_rows"))
        slots = number(summary, "cache", "rows")
        bars = []
        if host:
            detail = f"{count(num_rows)} rows" if num_rows else ""
            bars.append(Bar("All rows, in host memory", host, size(host), detail, 3))
            if slots is not None and num_rows:
                cached = host * slots / num_rows
                detail = f"{count(slots)} slots, {percent(slots / num_rows)} of all rows"
                bars.append(Bar("Cache, on the device", cached, size(cached), detail, 1))
        if device:
            bars.append(Bar("Device, everything", device, size(device), "cache, model and work space", 0))
        return bar_list("memory", "Memory", "", bars)

    def _evaluations(self, split: str, name: str) -> Curve:
        lines = self._run.lines(split)
        apart = -(-len(lines) // _MOST_EVALUATIONS) or 1
        return [(line["samples"], number(line, name)) for line in lines[::-1][::apart][::-1]]


def _scaled(points: Curve, factor: float) -> Curve:
    return [(x, None if y is None else y / factor) for x, y in points]


def _percent(value: float) -> str:
    return f"{value:.1f}%"


def _milliseconds(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 2}f} ms"
