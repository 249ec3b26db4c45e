"""A network exported by PyTorch, trained by Cadre's engine, and loaded by PyTorch again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from torch.nn import functional as F  # noqa: E402

_FILES = "/usr/share/datasets/fashion-mnist"
_DATA = f"""data {{ idx {{
  train_images: "{_FILES}/train-images-idx3-ubyte.gz" train_labels: "{_FILES}/train-labels-idx1-ubyte.gz"
  test_images: "{_FILES}/t10k-images-idx3-ubyte.gz" test_labels: "{_FILES}/t10k-labels-idx1-ubyte.gz"
  mean: 0.2860 stddev: 0.3530
}} }}"""


def cadre(folder: Path, *arguments: str) -> str:
    command = [str(Path(os.environ["CADRE_BIN"]) / "cadre"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_train_export(root: Path, tmp_path: Path) -> None:
    sys.path[:0] = [str(root / "tests" / "torch"), str(root / "python" / "examples")]
    import import_models
    from fashion_mnist import read

    torch.manual_seed(1)
    network = import_models.MODELS["crnn"][0]()
    # The file of the fixture refers to weights.bin, in the order of the tensors.
    before = {name: t.clone() for name, t in network.state_dict().items() if t.is_floating_point()}
    weights = b"".join(tensor.numpy().tobytes() for tensor in before.values())
    (tmp_path / "weights.bin").write_bytes(weights)
    shutil.copy(root / "tests" / "torch" / "imports" / "crnn.onnx", tmp_path)

    run = tmp_path / "run.textproto"
    cadre(tmp_path, "import", "crnn.onnx", "-O", run.name, "--weights", str(tmp_path / "w.safetensors"))
    text = run.read_text().replace("stop { epochs: 10 }", "stop { steps: 64 }")
    run.write_text(text.replace('data { image_folder { train: "train" test: "test" } }', _DATA))
    output = cadre(tmp_path, "local", run.name, "--checkpoint", "checkpoints", "-o", "json")
    result = json.loads(output.splitlines()[-1])
    cadre(tmp_path, "export", "checkpoints", "-O", "trained.safetensors")

    trained = load_file(tmp_path / "trained.safetensors")
    assert trained.keys() == before.keys()
    assert all(not torch.equal(trained[name], before[name]) for name in before)
    network.load_state_dict(trained, strict=False)
    network.eval()
    images, labels = read("t10k")
    with torch.no_grad():
        scores = torch.cat([network(part) for part in images.split(1000)])
    accuracy = (scores.argmax(1) == labels).float().mean().item()
    assert abs(F.cross_entropy(scores, labels).item() / result["test_loss"] - 1) < 1e-4
    assert abs(accuracy - result["test_accuracy"]) <= 0.0002
    assert result["test_loss"] < 2.2, "less than that of a uniform guess, log(10)"
