"""The history of a run in the formats of other programs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from processes import PYTHON, Cluster
from test_groups import spec

import cadre
from cadre.loggers import values_of


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
    commits = [entry["commit"] for entry in history if "commit" in entry]

    accumulator = events.EventAccumulator(str(tmp_path / "events"))
    accumulator.Reload()
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
    logged = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")}
    assert logged == pytest.approx(losses)


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
