#!/usr/bin/env python3
"""Bytes and time of the rounds in which two sites average LoRA adapters over a slow link.

The sites are network namespaces whose link has --rate in each direction. The first one has the coordinator, an
aggregator and a program, the second one a program; both train adapters of a Llama of random weights. Bytes are those
that Cadre counts, of the rounds after those that exchange the first values; seconds are those of an average in each
program, without the wait of the first one. Prints a JSON line for each codec. Requires root, iproute2, built
programs, PyTorch, transformers and peft:

    deploy/build.sh cadre_group cadre-coordinator cadre-aggregator && bench/lora_link.py --codecs fp32,e3m0
"""
import json
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import Hosts, bits_per_second
from runner import Cluster, parser, report, use_python_package

use_python_package()
import cadre  # noqa: E402

SITES = ["here", "there"]
# Bytes of 256 values, with the scale that a code has for them (kernels/codec/codec.h).
BLOCK_BYTES = {"fp32": 1024, "bf16": 512, "int8": 257, "e3m0": 129}


def adapted_model(rank):
    import peft
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
        max_position_embeddings=64))
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"]))


def train(options):
    """The program of one site. Prints the seconds of each average."""
    import torch

    torch.set_num_threads(1)
    model = adapted_model(options.rank)
    values = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(values, lr=1e-3)
    group = cadre.attach(model, optimizer, coordinator=options.coordinator, run=json.loads(options.run), insecure=True,
                         timeout=120)
    # The sites train on different samples.
    torch.manual_seed(SITES.index(options.site))
    seconds = []
    for _ in group:
        tokens = torch.randint(256, (2, 16))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        version = group.version
        begin = time.monotonic()
        optimizer.step()
        if group.version != version:
            seconds.append(time.monotonic() - begin)
    print(json.dumps({"values": sum(value.numel() for value in values), "digest": group.digest,
                      "discarded": group.discarded_steps, "seconds": seconds}))


def run_of(codec, rounds):
    coding = {} if codec == "fp32" else {"up": {"codec": f"CODEC_{codec.upper()}"},
                                         "down": {"codec": f"CODEC_{codec.upper()}"}}
    return {"name": f"lora-{codec}", "batch_per_group": 2, "stop": {"steps": 5 * rounds},
            "averaging": {"every_steps": 5, "min_groups": 2, **coding},
            "cluster": {"groups": 2, "rejoin_wait_ms": 60000}}


def bytes_of_rounds(cluster, codec):
    """Bytes between groups and aggregators in each round after those that exchange the first values."""
    entries = cluster.call("history", f"lora-{codec}")["entries"]
    totals = [entry["commit"]["bytes_across_groups"] for entry in entries if "commit" in entry]
    return [later - earlier for earlier, later in zip(totals[1:], totals[2:])]


def measure(cluster, codec, options):
    program = [sys.executable, __file__, "--rank", str(options.rank), "--run",
               json.dumps(run_of(codec, options.rounds)), "--coordinator", cluster.coordinator]
    programs = [cluster.hosts.start(site, [*program, "--site", site], stdout=subprocess.PIPE, text=True)
                for site in SITES]
    try:
        here, there = [json.loads(one.communicate(timeout=600)[0].splitlines()[-1]) for one in programs]
    finally:
        for one in programs:
            one.kill()
            one.wait()
    rounds = bytes_of_rounds(cluster, codec)
    payload = here["values"] * BLOCK_BYTES[codec] / 256
    # Each round has a transfer in each direction for each of the two groups.
    transfer = statistics.median(rounds) / 4
    report(options, "lora_link", rate=options.rate, codec=codec, values=here["values"],
           adapter_bytes=4 * here["values"], payload_bytes=payload, transfer_bytes=transfer,
           overhead=transfer / payload - 1, rounds=len(rounds), seconds_here=statistics.median(here["seconds"][1:]),
           seconds_there=statistics.median(there["seconds"][1:]),
           seconds_of_the_link=2 * 8 * transfer / bits_per_second(options.rate),
           same_digest=here["digest"] == there["digest"], discarded=here["discarded"] + there["discarded"])


def main():
    p = parser(__doc__)
    p.add_argument("--codecs", default="fp32,e3m0")
    p.add_argument("--rate", default="10mbit")
    p.add_argument("--rank", type=int, default=32, help="of the adapters")
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--site", choices=SITES, help="run the program of this site")
    p.add_argument("--run")
    p.add_argument("--coordinator")
    options = p.parse_args()
    if options.site:
        return train(options)
    with Hosts(SITES, options.rate) as hosts, tempfile.TemporaryDirectory() as folder:
        with Cluster(options.bin, folder, hosts) as cluster:
            cluster.start_coordinator(host="here")
            cluster.start_aggregator("here", host="here")
            for codec in options.codecs.split(","):
                measure(cluster, codec, options)


if __name__ == "__main__":
    main()
