"""Native groups and programs in one run, whose model both know."""

from __future__ import annotations

from pathlib import Path

from processes import Cluster, wait_for
from test_groups import assert_agree, assert_ends_before_it_begins, last

_FILES = "/usr/share/datasets/fashion-mnist"
_RUN = f"""
name: "mixed"
model {{
  input {{ channels: 1 height: 28 width: 28 }}
  layer {{ name: "conv1" convolution {{ out_channels: 32 kernel: 3 padding: 1 }} }}
  layer {{ name: "relu1" relu {{}} }}
  layer {{ name: "pool1" max_pool {{ kernel: 2 }} }}
  layer {{ name: "conv2" convolution {{ out_channels: 64 kernel: 3 padding: 1 }} }}
  layer {{ name: "relu2" relu {{}} }}
  layer {{ name: "pool2" max_pool {{ kernel: 2 }} }}
  layer {{ name: "fc1" fully_connected {{ out_features: 1024 }} }}
  layer {{ name: "relu3" relu {{}} }}
  layer {{ name: "fc2" fully_connected {{ out_features: 10 }} }}
  layer {{ name: "loss" softmax_cross_entropy {{}} }}
}}
data {{
  idx {{
    train_images: "{_FILES}/train-images-idx3-ubyte.gz"
    train_labels: "{_FILES}/train-labels-idx1-ubyte.gz"
    test_images: "{_FILES}/t10k-images-idx3-ubyte.gz"
    test_labels: "{_FILES}/t10k-labels-idx1-ubyte.gz"
    mean: 0.2860
    stddev: 0.3530
  }}
}}
batch_per_group: 64
optimizer {{ sgd {{ momentum: 0.9 weight_decay: 5e-4 }} }}
schedule {{ base_rate: 0.02 }}
averaging {{ every_steps: 16 up {{ codec: CODEC_E3M0 }} down {{ codec: CODEC_E3M0 }} }}
cluster {{ groups: 2 aggregators: 2 rejoin_wait_ms: 60000 }}
stop {{ steps: STEPS }}
seed: 1
"""


def run_file(folder: Path, steps: int) -> Path:
    path = folder / "run.textproto"
    path.write_text(_RUN.replace("STEPS", str(steps)))
    return path


def test_native_group_and_program(cluster: Cluster) -> None:
    run = cluster.client.submit(run_file(cluster.folder, 160))
    cluster.start_worker("native", "--data_root=/usr/share/datasets")
    program = cluster.start("torch", "fashion_program.py", "--run", run)
    program.succeed(300)
    status = cluster.client.wait(run, timeout=30)
    assert status["state"] == "RUN_STATE_DONE"
    assert status["digest"] == last(program)["digest"]
    # The native group has evaluated the last version, which PyTorch computes alike.
    assert abs(status["test"]["accuracy"] - last(program)["accuracy"]) < 0.002
    assert last(program)["accuracy"] > 0.7


def test_either_group_continues_without_the_other(cluster: Cluster) -> None:
    run = cluster.client.submit(run_file(cluster.folder, 100000))
    native = cluster.start_worker("native", "--data_root=/usr/share/datasets")
    program = cluster.start("torch", "fashion_program.py", "--run", run)

    def version() -> int:
        return cluster.client.run_status(run)["version"]

    def both() -> bool:
        groups = cluster.client.status(run)["groups"]
        return len(groups) == 2 and all(g["state"] == "GROUP_STATE_TRAINING" for g in groups)

    wait_for(lambda: both() and version() > 1, "both groups")
    program.process.kill()
    before = version()
    wait_for(lambda: version() > before + 2, "the native group to continue")
    returned = cluster.start("returned", "fashion_program.py", "--run", run)
    wait_for(lambda: returned.versions(), "the program to rejoin")
    native.kill()
    before = max(returned.versions())
    wait_for(lambda: max(returned.versions()) > before + 2, "the program to continue")
    cluster.start_worker("native", "--data_root=/usr/share/datasets")
    wait_for(both, "the native group to rejoin")
    before = version()
    wait_for(lambda: version() > before + 1, "versions of both")
    assert_agree(program, returned)


def test_terminated_loop_ends_before_it_begins(cluster: Cluster) -> None:
    run = cluster.client.submit(run_file(cluster.folder, 160))
    assert_ends_before_it_begins(cluster, cluster.start("waits", "fashion_program.py", "--run", run))
