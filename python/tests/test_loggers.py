"""The history of a run in the formats of other programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import PYTHON, Cluster
from test_groups import spec

import cadre
from cadre.loggers import MLflow, TensorBoard, WandB, log_run, values_of


def test_tensorboard_and_mlflow_open_the_history(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A database would need packages that mlflow-skinny does not install.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracking = pytest.importorskip("mlflow.tracking")
    text = json.dumps({**json.loads(spec("logged", groups=1)), "evaluation": {"every_steps": 20}})
    program = cluster.start("p", "program.py", "--spec", text, "--evaluate")
    store = f"file://{tmp_path / 'mlflow'}"
    logger = subprocess.Popen(
        [*PYTHON, "-m", "cadre.loggers", "logged", "--coordinator", cluster.address, "--insecure",
         "--interval", "0.2", "--tensorboard", tmp_path / "events", "--mlflow", store, "--wait", "60"],
        stdout=subprocess.PIPE, text=True)
    program.succeed()
    out, _ = logger.communicate(timeout=60)
    assert logger.returncode == 0
    history = cluster.client.history("logged")["entries"]
    assert f"wrote {len(history)} entries of run logged" in out
    # Started again, it repeats nothing.
    lineage = cluster.client.run_status("logged")["lineage"]
    again = MLflow(store, "logged", lineage)
    assert again.newest == len(history)
    assert log_run(cluster.client, "logged", [TensorBoard(str(tmp_path / "events")), again]) == len(history)
    commits = [entry["commit"] for entry in history if "commit" in entry]

    accumulator = events.EventAccumulator(str(tmp_path / "events"))
    accumulator.Reload()
    assert all(len({event.step for event in accumulator.Scalars(tag)}) == len(accumulator.Scalars(tag))
               for tag in accumulator.Tags()["scalars"])
    scalars = {tag: {event.step: event.value for event in accumulator.Scalars(tag)}
               for tag in accumulator.Tags()["scalars"]}
    losses = {int(commit["step"]): commit["loss"] for commit in commits if commit.get("loss") is not None}
    assert scalars["train/loss"] == pytest.approx(losses)
    assert scalars["cadre/version"] == {int(commit["step"]): int(commit["version"]) for commit in commits}
    assert len(scalars["eval/accuracy"]) >= 2

    client = tracking.MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([client.get_experiment_by_name("cadre").experiment_id])
    assert run.info.run_name == "logged"
    assert run.info.status == "FINISHED"
    logged = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/loss")]
    assert len(logged) == len(losses)
    assert dict(logged) == pytest.approx(losses)


class FakeWandB:
    """The part of wandb that the bridge uses: logs that survive, and the last values as their summary."""

    def __init__(self) -> None:
        self.logs: dict[str, list[dict[str, float]]] = {}
        self.axes: dict[str, str] = {}

    def init(self, *, project: str, name: str, id: str, resume: str) -> SimpleNamespace:
        assert (project, resume) == ("project", "allow")
        logs = self.logs.setdefault(id, [])

        def define_metric(name: str, step_metric: str | None = None) -> None:
            if step_metric is not None:
                self.axes[name] = step_metric

        # Without a step: wandb leaves out logs with a lower step than the newest.
        return SimpleNamespace(summary={name: value for log in logs for name, value in log.items()},
                               define_metric=define_metric, log=logs.append, finish=lambda: None)


def test_wandb_keeps_late_evaluations_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    commit = {"version": 2, "step": "40", "samples": "640", "participants": [], "bytes_across_groups": "0"}
    history = [{"number": "1", "time_ms": "1", "commit": commit},
               {"number": "2", "time_ms": "2", "evaluation": {"step": "20", "accuracy": 0.5, "loss": 1.0}}]

    def log(count: int, lineage: str) -> int:
        class Coordinator:
            def run_status(self, run: str) -> dict[str, str]:
                return {"run": run, "state": "RUN_STATE_DONE"}

            def history(self, run: str, after: int) -> dict[str, Any]:
                return {"entries": [entry for entry in history[:count] if int(entry["number"]) > after]}

        return log_run(Coordinator(), "run-1", [WandB("project", "run", lineage)])

    assert [log(1, "a"), log(2, "a"), log(2, "a"), log(2, "b")] == [1, 1, 0, 2]
    assert [line["cadre/step"] for line in wandb.logs["a"]] == [40, 20]
    assert wandb.logs["a"][1]["eval/accuracy"] == 0.5
    assert wandb.logs["a"] == wandb.logs["b"]
    assert wandb.axes == {"*": "cadre/step"}


def test_what_is_not_known_is_left_out() -> None:
    commit = {"version": 3, "step": "40", "samples": "640", "loss": None, "rate": 0, "participants": [],
              "bytes_across_groups": "0", "metrics": None}
    assert values_of({"commit": commit}) == (
        40, {"train/samples": 640, "cadre/version": 3, "cadre/bytes_across_groups": 0})
    metrics = {"tokens": "1024", "mean": {"gradient_norm": 0.5}}
    _, values = values_of({"commit": {**commit, "loss": 1.0, "metrics": metrics}})
    assert values["train/perplexity"] == pytest.approx(2.718281828)
    assert (values["train/tokens"], values["train/gradient_norm"]) == (1024, 0.5)


def test_a_run_that_does_not_exist_is_named(cluster: Cluster) -> None:
    command = [*PYTHON, "-m", "cadre.loggers", "none", "--coordinator", cluster.address, "--insecure"]
    failed = subprocess.run([*command, "--tensorboard", "unused"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "error: " in failed.stderr and "none" in failed.stderr
    unused = subprocess.run(command, capture_output=True, text=True)
    assert unused.returncode == 2
    assert "name at least one of --tensorboard, --mlflow and --wandb" in unused.stderr


def test_history_continues_after_an_entry(cluster: Cluster) -> None:
    with pytest.raises(cadre.CadreError, match="no-such-run"):
        cluster.client.history("no-such-run")
