"""Sentences of every length, one at a time, by a model that no batch can be made for.

The model reads a sentence along a random binary tree of its words, in plain Python, so its time
grows with the length, and ranks with equally many sentences wait for the longest. With `cost` each
rank gets equally many words in a step; with `deal` it takes the next sentence when it is ready.

paceline run -n 2 -- examples/sentences.py deal
"""

import random
import sys

import numpy as np
import torch
from torch import nn

import paceline

SENTENCES, PER_RANK, WORDS, WIDTH, EPOCHS = 960, 8, 500, 64, 2


def make_sentences():
    """Lists of words, 20 on average and 200 at most; most are of one class or of the other."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(20) - 0.245, 0.7, SENTENCES).round(), 1, 200)
    sentences = []
    for number, length in enumerate(lengths.astype(int)):
        common, own = rng.integers(0, WORDS, (2, length))
        own = own // 2 + (number % 2) * WORDS // 2
        words = np.where(rng.random(length) < 0.7, own, common)
        sentences.append((words.tolist(), number % 2))
    return sentences


class TreeModel(nn.Module):
    """Joins the two parts of a sentence, each read in the same way."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.join = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh())
        self.classes = nn.Linear(WIDTH, 2)

    def read(self, words, draw):
        if len(words) == 1:
            return self.words(torch.tensor(words[0]))
        cut = draw.randrange(1, len(words))
        return self.join(torch.cat([self.read(words[:cut], draw), self.read(words[cut:], draw)]))

    def forward(self, words):
        return self.classes(self.read(words, random.Random(len(words))))


def main(by):
    world = paceline.init()
    torch.manual_seed(0)
    sentences, model = make_sentences(), TreeModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if by == "deal":
        steps = paceline.deal(sentences, global_batch=PER_RANK * world.size, shuffle=True)
    else:
        cost = "length" if by == "cost" else None
        steps = paceline.shard(sentences, PER_RANK, cost=cost, collate=list)
    with paceline.keep_pace(model, optimizer) as pace:
        for epoch in range(EPOCHS):
            losses = []
            for step in steps:
                optimizer.zero_grad()
                for words, label in step:  # this rank's, one by one
                    loss = nn.functional.cross_entropy(model(words), torch.tensor(label))
                    (loss if by == "deal" else loss / len(step)).backward()
                    losses.append(loss.item())
                optimizer.step()
            waited, mean = pace.time().shares()["wait"], sum(losses) / len(losses)
            print(f"epoch {epoch + 1}, rank {world.rank} waited {waited:.0%}: loss {mean:.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deal")
