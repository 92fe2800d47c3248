"""Sentences of every length, one at a time, by a model that no batch can be made for.

    paceline run -n 4 -- sentences.py deal       # or: counts, cost

The model reads a sentence along a random binary tree of its words, in plain Python, so its time
grows with the length, and ranks with equally many sentences wait for the longest. With `cost` each
rank gets equally many words in a step; with `deal` it takes the next sentence when it is ready.
"""

import random
import sys

import numpy as np
import torch
from torch import nn

import paceline

SENTENCES, PER_RANK, WORDS, WIDTH, EPOCHS = 960, 8, 500, 64, 2


def make_sentences():
    """Lists of words: 20 on average, 200 at most, with a label each."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(20) - 0.245, 0.7, SENTENCES).round(), 1, 200)
    return [(rng.integers(0, WORDS, int(n)).tolist(), int(n) % 2) for n in lengths]


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
            waited = pace.time().shares()["wait"]
            if world.rank == 0:
                mean = sum(losses) / len(losses)
                print(f"epoch {epoch + 1}: loss {mean:.4f}, rank 0 waited {waited:.0%}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deal")
