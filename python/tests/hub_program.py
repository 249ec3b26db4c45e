"""Trains a tiny Llama of transformers, or an adapter of peft for it, for the tests of exports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import cadre


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--spec", required=True, help="JSON")
    parser.add_argument("--base", required=True, help="folder of the model")
    parser.add_argument("--adapter", help="folder of an adapter of peft")
    parser.add_argument("--freeze", action="store_true", help="freezes the embedding")
    parser.add_argument("--out", type=Path, required=True, help="receives the trained state")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.float32)
    if options.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, options.adapter, is_trainable=True)
    if options.freeze:
        model.get_input_embeddings().weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    tokens = torch.arange(16).view(2, 8)
    with cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.spec),
                      insecure=True, timeout=90):
        while True:
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        torch.save({"logits": model(input_ids=tokens).logits, "state": model.state_dict()}, options.out)


if __name__ == "__main__":
    main()
