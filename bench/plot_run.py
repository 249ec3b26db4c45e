#!/usr/bin/env python3
"""Draws training loss and test accuracy of a run to a PNG.

    cadre watch RUN -o json | bench/plot_run.py -o run.png
    bench/plot_run.py -o run.png updates.jsonl

Reads one status update (the message WatchUpdate, as JSON) per line until the input ends, then draws.
Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import dataclasses
import json
import re
import sys

INK = "#1f2933"
FAINT = "#9aa5b1"
GRID = "#e4e7eb"
LOSS = "#1f6feb"
ACCURACY = "#d9480f"
GROUPS = ("#74a9f7", "#8fd3c1", "#c3a6ff", "#f7c274", "#f29ca3", "#a5b1bd")


class InputError(Exception):
    """An error in the input, described for the user."""


@dataclasses.dataclass
class Curves:
    name: str = ""
    total_steps: int = 0
    total_epochs: float = 0.0
    # Points by step; a later update for the same step replaces an earlier one.
    loss: dict = dataclasses.field(default_factory=dict)
    group_loss: dict = dataclasses.field(default_factory=dict)
    accuracy: dict = dataclasses.field(default_factory=dict)

    def in_epochs(self):
        return bool(self.total_steps and self.total_epochs)

    def epoch_of(self, step):
        """The epoch of a step if the run states its length in epochs, else the step."""
        return step * self.total_epochs / self.total_steps if self.in_epochs() else step


def field(message, name, default=0.0):
    """A number of a message; `default` if it is missing or null. Also reads protobuf's own JSON, which omits
    zeros, writes 64-bit integers as strings and names in camelCase."""
    camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    value = message.get(name, message.get(camel))
    return default if value is None else float(value)


def add_update(curves, update):
    run = update.get("run") or {}
    curves.name = run.get("name") or run.get("run") or curves.name
    curves.total_steps = int(field(run, "total_steps")) or curves.total_steps
    curves.total_epochs = field(run, "total_epochs") or curves.total_epochs
    step = int(field(run, "step"))
    if step and field(run, "loss"):
        curves.loss[step] = field(run, "loss")
    test = run.get("test") or {}
    if field(test, "samples"):
        curves.accuracy[int(field(test, "step"))] = field(test, "accuracy")
    for group in update.get("groups") or []:
        step = int(field(group, "step"))
        if step and field(group, "loss"):
            points = curves.group_loss.setdefault(int(field(group, "group")), {})
            points[step] = field(group, "loss")


def read(lines):
    """Curves from lines of JSON. An incomplete last line is ignored."""
    curves, broken = Curves(), None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if broken is not None:
            raise InputError(broken)
        try:
            update = json.loads(line)
        except json.JSONDecodeError as error:
            broken = f"line {number} is not JSON: {error.msg} at column {error.colno}"
            continue
        if not isinstance(update, dict):
            raise InputError(f"line {number} is not a status update but {type(update).__name__}")
        try:
            add_update(curves, update)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"line {number} is not a status update: {error}") from error
    if not curves.loss and not curves.accuracy and not curves.group_loss:
        raise InputError(
            broken
            or "nothing to draw: the input has no update of a run that trained "
            "(is `cadre watch RUN -o json` its source?)"
        )
    return curves


def smooth(values, window=5):
    """Mean over the values around each one; towards the ends the window shrinks evenly."""
    means = []
    for i in range(len(values)):
        half = min(window // 2, i, len(values) - 1 - i)
        around = values[i - half : i + half + 1]
        means.append(sum(around) / len(around))
    return means


def points(curves, series):
    steps = sorted(series)
    return [curves.epoch_of(step) for step in steps], [series[step] for step in steps]


def style(axis, label):
    axis.set_ylabel(label, color=INK)
    axis.grid(axis="y", color=GRID, linewidth=1)
    axis.set_axisbelow(True)
    axis.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(FAINT)


def draw_loss(axis, curves):
    for group, series in sorted(curves.group_loss.items()):
        x, y = points(curves, series)
        color = GROUPS[group % len(GROUPS)]
        # Dots, because a group reports its loss only occasionally.
        axis.plot(x, y, ".", color=color, markersize=5, alpha=0.8, label=f"group {group}")
    if curves.loss:
        x, y = points(curves, curves.loss)
        axis.plot(x, smooth(y), color=LOSS, linewidth=2.2, label="all groups, smoothed")
    style(axis, "training loss")
    axis.set_ylim(bottom=0)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=9, ncols=2, labelcolor=INK)


def draw_accuracy(axis, curves):
    x, y = points(curves, curves.accuracy)
    percent = [100 * value for value in y]
    axis.plot(x, percent, color=ACCURACY, linewidth=2.2, marker="o", markersize=5)
    style(axis, "test accuracy, %")
    if percent:
        axis.annotate(
            f"{percent[-1]:.2f} %", (x[-1], percent[-1]), xytext=(-6, 8), ha="right",
            textcoords="offset points", color=ACCURACY, fontweight="bold",
        )  # fmt: skip
        margin = max(0.5, 0.25 * (max(percent) - min(percent)))
        axis.set_ylim(max(0, min(percent) - margin), min(100, max(percent) + margin))
    else:
        axis.text(0.5, 0.5, "not evaluated yet", transform=axis.transAxes, ha="center", color=FAINT)


def draw(curves, path, title):
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("matplotlib is missing (Debian: python3-matplotlib)") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5.6), dpi=144, height_ratios=(3, 2), layout="constrained"
    )
    draw_loss(above, curves)
    draw_accuracy(below, curves)
    below.set_xlabel("epoch" if curves.in_epochs() else "step", color=INK)
    figure.suptitle(title or curves.name, x=0.01, ha="left", color=INK, fontweight="bold")
    figure.savefig(path)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", nargs="?", default="-", help="file of updates (default: stdin)")
    parser.add_argument("-o", "--output", default="run.png", help="PNG to write (default: run.png)")
    parser.add_argument("--title", default="", help="title (default: the run's name)")
    arguments = parser.parse_args()
    try:
        if arguments.input == "-":
            curves = read(sys.stdin)
        else:
            with open(arguments.input, encoding="utf-8") as lines:
                curves = read(lines)
        draw(curves, arguments.output, arguments.title)
    except (InputError, OSError) as error:
        sys.exit(f"plot_run: {error}")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
