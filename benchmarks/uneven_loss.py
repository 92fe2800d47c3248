"""Does grouping by length cost accuracy? A language model on English sentences, by equal counts
and by equal cost, from several seeds.

    paceline run -n 2 -- benchmarks/uneven_loss.py [SEEDS [EPOCHS]]

The sentences are those of Python's documentation (pydoc_data.topics); one in five validates. The
loss is per word, over all ranks, after equal epochs; `cost` uses the default bucketing.
"""

from __future__ import annotations

import re
import sys
from pydoc_data.topics import topics
from zlib import crc32

import numpy as np
import torch
from torch import nn

import paceline
from paceline.data import Pad

VOCABULARY, WIDTH, BATCH, IGNORED = 800, 96, 8, -100


def read_sentences() -> list[np.ndarray]:
    found = []
    for text in topics.values():
        for sentence in re.split(r"(?<=[.:;])\s+", text):
            words = re.findall(r"[A-Za-z']+", sentence.lower())
            if len(words) > 2:
                found.append(np.array([1 + crc32(w.encode()) % (VOCABULARY - 1) for w in words]))
    return found


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.next = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.next(self.lstm(self.words(words))[0])


def loss_of(model: nn.Module, words: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Of predicting each next word."""
    targets = words[:, 1:].masked_fill(words[:, 1:] == 0, IGNORED)
    return nn.functional.cross_entropy(
        model(words[:, :-1]).flatten(0, 1), targets.flatten(), reduction=reduction
    )


def train(by: dict[str, object], seed: int, epochs: int, sentences: list[np.ndarray]) -> float:
    """The validation loss per word."""
    world = paceline.init()
    torch.manual_seed(seed)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    validation, training = sentences[::5], [s for at, s in enumerate(sentences) if at % 5]
    words = np.array([len(sentence) - 1 for sentence in training], float)
    batches = paceline.shard(
        training, BATCH, weight=words, collate=Pad(), to=torch.from_numpy, seed=seed, **by
    )
    with paceline.keep_pace(model, optimizer):
        for _ in range(epochs):
            for batch in batches:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        mine = [torch.from_numpy(s)[None] for s in validation[world.rank :: world.size]]
        total = np.array([sum(float(loss_of(model, s, "sum")) for s in mine)])
    world.all_reduce(total)
    return float(total[0] / sum(len(sentence) - 1 for sentence in validation))


def main() -> None:
    words = [int(word) for word in sys.argv[1:]]
    seeds, epochs = [*words, *(3, 4)[len(words) :]]
    world = paceline.init()
    torch.set_num_threads(1)
    sentences = read_sentences()
    kinds = {"counts": {}, "cost": {"cost": "length"}, "sorted": {"cost": "length", "bucketing": 1}}
    for seed in range(1, seeds + 1):
        found = {name: train(by, seed, epochs, sentences) for name, by in kinds.items()}
        if world.rank == 0:
            figures = ", ".join(f"{name} {loss:.4f}" for name, loss in found.items())
            print(f"seed {seed}: {figures}", flush=True)
    if world.rank == 0:
        print(f"validation loss per word, {len(sentences):,} sentences, {epochs} epochs")


if __name__ == "__main__":
    main()
