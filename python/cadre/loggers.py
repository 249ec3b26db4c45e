"""Writes the history of a run to TensorBoard, MLflow or Weights & Biases, while it trains or later.

    python -m cadre.loggers RUN --coordinator HOST:7000 --tls DIR --tensorboard FOLDER

The program only reads from the coordinator, so it may run anywhere and be started again at any time. It then
replaces what TensorBoard has, and continues a run of MLflow or Weights & Biases after its newest entry.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from cadre.client import ENDED, Client
from cadre.errors import CadreError


# The metric with the number of an entry in the history, by which a writer knows what it has, and the one with its step.
_ENTRY = "cadre/entry"
_STEP = "cadre/step"
# The tag with the lineage of a run; names and ids of runs are used again, by this cluster or by others.
_LINEAGE = "cadre.lineage"


class Writer(Protocol):
    """Stores the values of entries of a history by name."""

    # The number of the newest entry that it has already.
    newest: int

    def write(self, number: int, step: int, time_ms: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder. Requires torch and tensorboard."""

    newest = 0

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides what files of the folder have from step 0 on.
        self._writer = SummaryWriter(folder, purge_step=0)

    def write(self, number: int, step: int, time_ms: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time_ms / 1000)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of an experiment of an MLflow server or store. Requires mlflow or mlflow-skinny.

    `lineage`: of the run, which its tag has; a run of the experiment with this tag is continued.
    """

    def __init__(self, uri: str, name: str, lineage: str, experiment: str = "cadre") -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        runs = self._client.search_runs([number], f"tags.`{_LINEAGE}` = '{lineage}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self.newest = int(runs[0].data.metrics.get(_ENTRY, 0))
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(number, run_name=name, tags={_LINEAGE: lineage}).info.run_id
            self.newest = 0

    def write(self, number: int, step: int, time_ms: int, values: Mapping[str, float]) -> None:
        metrics = [self._metric(name, value, time_ms, step) for name, value in values.items()]
        # The last one, so that an entry that was interrupted is repeated.
        metrics.append(self._metric(_ENTRY, number, time_ms, number))
        self._client.log_batch(self._run, metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """A run of a project of Weights & Biases. Requires wandb.

    `lineage`: of the run, which is the id of the run there. Offline, a second run has the entries again.
    """

    def __init__(self, project: str, name: str, lineage: str) -> None:
        import wandb

        self._run = wandb.init(project=project, name=name, id=lineage, resume="allow")
        # Its own steps may only increase, but an evaluation ends after later steps of training.
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        self.newest = int(self._run.summary.get(_ENTRY) or 0)

    def write(self, number: int, step: int, time_ms: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, _STEP: step, _ENTRY: number})

    def close(self) -> None:
        self._run.finish()


def values_of(entry: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The step and the values of an entry of a history (HistoryEntry); what is not known is left out."""
    if (evaluation := entry.get("evaluation")) is not None:
        return int(evaluation["step"]), {"eval/accuracy": evaluation["accuracy"], "eval/loss": evaluation["loss"]}
    commit = entry["commit"]
    metrics = commit.get("metrics") or {}
    tokens = int(metrics.get("tokens") or 0)
    values: dict[str, Any] = {
        "train/loss": commit.get("loss"),
        "train/rate": commit.get("rate") or None,
        "train/samples": int(commit["samples"]),
        "train/tokens": tokens or None,
        "cadre/version": int(commit["version"]),
        "cadre/groups": len(commit["participants"]) or None,
        "cadre/bytes_across_groups": int(commit["bytes_across_groups"]),
    }
    if tokens and commit.get("loss") is not None:
        values["train/perplexity"] = math.exp(min(float(commit["loss"]), 700.0))
    values.update({f"train/{name}": value for name, value in (metrics.get("mean") or {}).items()})
    return int(commit["step"]), {name: float(value) for name, value in values.items() if value is not None}


def entries(client: Client, run: str, *, after: int = 0, interval: float = 5.0) -> Iterator[dict[str, Any]]:
    """Yields the entries of the run's history with higher numbers than `after`, until it has ended."""
    while True:
        status = client.run_status(run)
        run = status["run"]  # its name may stand for a newer run later
        ended = status["state"] in ENDED
        while found := client.history(run, after=after)["entries"]:
            yield from found
            after = int(found[-1]["number"])
        if ended:
            return
        time.sleep(interval)


def log_run(client: Client, run: str, writers: Sequence[Writer], *, interval: float = 5.0) -> int:
    """Writes the history of the run until it has ended. Returns the number of entries that a writer lacked."""
    count = 0
    try:
        oldest = min((writer.newest for writer in writers), default=0)
        for entry in entries(client, run, after=oldest, interval=interval):
            step, values = values_of(entry)
            number = int(entry["number"])
            for writer in writers:
                if number > writer.newest:
                    writer.write(number, step, int(entry["time_ms"]), values)
            count += 1
    finally:
        for writer in writers:
            writer.close()
    return count


def _status_of(client: Client, run: str, wait: float) -> dict[str, Any]:
    """The status of a run that may not have been submitted yet."""
    deadline = time.monotonic() + wait
    while True:
        try:
            return client.run_status(run)
        except CadreError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cadre.loggers", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="id or name of the run")
    parser.add_argument("--coordinator", required=True, metavar="HOST:PORT")
    parser.add_argument("--tls", metavar="DIR", help="folder with the certificate of a viewer or operator")
    parser.add_argument("--insecure", action="store_true", help="connect without TLS")
    parser.add_argument("--tensorboard", metavar="DIR", help="folder for event files")
    parser.add_argument("--mlflow", metavar="URI", help="tracking server or store, such as sqlite:///runs.db")
    parser.add_argument("--wandb", metavar="PROJECT", help="project of Weights & Biases")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two requests")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS",
                        help="how long to wait for the run to be submitted")
    options = parser.parse_args()
    if not (options.tensorboard or options.mlflow or options.wandb):
        parser.error("name at least one of --tensorboard, --mlflow and --wandb")
    writers: list[Writer] = []
    try:
        with Client(options.coordinator, tls=options.tls, insecure=options.insecure) as client:
            status = _status_of(client, options.run, options.wait)
            name, lineage = status["name"], status["lineage"]
            if options.tensorboard:
                writers.append(TensorBoard(options.tensorboard))
            if options.mlflow:
                writers.append(MLflow(options.mlflow, name, lineage))
            if options.wandb:
                writers.append(WandB(options.wandb, name, lineage))
            count = log_run(client, status["run"], writers, interval=options.interval)
    except (CadreError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {count} entries of run {options.run}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
