"""Trains a small character-level GPT on a text as a group of a Cadre run."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import cadre

CONTEXT = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=64, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--coordinator", default="127.0.0.1:7000")
    args = parser.parse_args()
    text = Path(args.text).read_text()
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(character) for character in text])
    model = GPT(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = None
    run = {"name": "gpt", "batch_per_group": args.batch, "stop": {"steps": args.steps},
           "averaging": {"every_steps": 25, "outer": {"nesterov": {}}, "up": {"codec": "CODEC_E3M0"}},
           "cluster": {"groups": 2}}
    group = cadre.attach(model, optimizer, coordinator=args.coordinator, run=run, insecure=True)
    for _ in group:
        starts = (group.sample_position + torch.arange(args.batch)) * 7919
        windows = torch.stack([tokens[s:s + CONTEXT + 1] for s in starts % (len(tokens) - CONTEXT - 1)])
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"training loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
