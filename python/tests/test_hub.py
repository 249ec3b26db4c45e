"""Folders that `cadre export --hf` writes, read by transformers and peft."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import Cluster

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

TOKENS = torch.arange(16).view(2, 8)


def spec(name: str) -> str:
    return json.dumps({"name": name, "batch_per_group": 2, "averaging": {"every_steps": 2},
                       "cluster": {"aggregators": 2}, "stop": {"steps": 4}})


def base_model(folder: Path, **config: Any) -> Path:
    """The folder of a tiny Llama of random weights."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, **config))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def train(cluster: Cluster, name: str, base: Path, *flags: str) -> dict[str, Any]:
    """The logits and the state of a program that has trained to the end of its run."""
    out = cluster.folder / f"{name}.pt"
    program = cluster.start(name, "hub_program.py", "--spec", spec(name), "--base", str(base), "--out", str(out),
                            *flags)
    program.succeed()
    return torch.load(out)


def export(cluster: Cluster, *arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [Path(os.environ["CADRE_BIN"]) / "cadre", "export", *arguments, "--insecure", "--coordinator",
         cluster.address],
        capture_output=True, text=True, timeout=60)


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def test_models_are_read_by_transformers(cluster: Cluster) -> None:
    base = base_model(cluster.folder / "base", tie_word_embeddings=True)
    trained = train(cluster, "tied", base)
    out = cluster.folder / "out"
    result = export(cluster, "tied", "--hf", out, "--from", base)
    assert result.returncode == 0, result.stderr
    assert "model.safetensors (20 tensors of version" in result.stderr
    model = loaded(out)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(logits(model), trained["logits"])
    assert (out / "generation_config.json").read_bytes() == (base / "generation_config.json").read_bytes()
    # A folder that has files is not replaced unless it is requested.
    again = export(cluster, "tied", "--hf", out, "--from", base, "--dtype", "bf16")
    assert again.returncode == 1 and "is not an empty folder: --replace" in again.stderr, again.stderr
    assert export(cluster, "tied", "--hf", out, "--from", base, "--dtype", "bf16", "--replace").returncode == 0
    rounded = loaded(out, torch.bfloat16).state_dict()
    for name, values in trained["state"].items():
        assert torch.equal(rounded[name], values.to(torch.bfloat16)), name
    # Without the folder of the model, it is said what is missing.
    alone = export(cluster, "tied", "--hf", cluster.folder / "alone")
    assert "alone needs config.json; --from names a folder" in alone.stderr


def test_frozen_parameters_are_those_of_the_model(cluster: Cluster) -> None:
    base = base_model(cluster.folder / "base", tie_word_embeddings=False)
    trained = train(cluster, "frozen", base, "--freeze")
    out = cluster.folder / "out"
    refused = export(cluster, "frozen", "--hf", out)
    assert refused.returncode != 0
    assert "parameter 'model.embed_tokens.weight' [32, 16] is frozen, so that no version has it" in refused.stderr
    assert not out.exists()
    result = export(cluster, "frozen", "--hf", out, "--from", base)
    assert result.returncode == 0, result.stderr
    assert "1 frozen parameter of" in result.stderr
    assert torch.equal(logits(loaded(out)), trained["logits"])


def test_adapters_are_read_by_peft(cluster: Cluster) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file

    base = base_model(cluster.folder / "base", tie_word_embeddings=False)
    adapter = cluster.folder / "adapter"
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(plain, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=True,
                                     modules_to_save=["lm_head"])).save_pretrained(adapter)
    trained = train(cluster, "adapter", base, "--adapter", str(adapter))
    out = cluster.folder / "out"
    result = export(cluster, "adapter", "--hf", out, "--from", adapter)
    assert result.returncode == 0, result.stderr
    assert load_file(out / "adapter_model.safetensors").keys() == load_file(
        adapter / "adapter_model.safetensors").keys()
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), out)
    assert torch.equal(logits(model.eval()), trained["logits"])


def test_files_of_values(cluster: Cluster) -> None:
    from safetensors import safe_open

    base = base_model(cluster.folder / "base", tie_word_embeddings=True)
    trained = train(cluster, "file", base)["state"]
    for dtype, type_of in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        by_command, by_client = cluster.folder / "a.safetensors", cluster.folder / "b.safetensors"
        assert export(cluster, "file", "-O", by_command, "--dtype", dtype).returncode == 0
        cluster.client.save("file", by_client, dtype=dtype)
        assert by_command.read_bytes() == by_client.read_bytes()
        with safe_open(by_client, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():
                assert torch.equal(file.get_tensor(name), trained[name].to(type_of)), name
