"""Sentences of uneven length, and the models that `bench uneven` trains on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from zlib import crc32

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from paceline.models.lstm import PADDING, SentenceLSTM

VOCABULARY = 500
"""Tokens are numbered from 1; 0 pads."""
MEAN_LENGTH, SIGMA, LONGEST = 20.0, 0.7, 200
_CLASSES = 8
_OWN_WORDS = 0.3
"""The share of a random sentence's tokens that only its class uses."""
_SHORTEST = 3

Sentence = tuple[torch.Tensor, int]
"""Its tokens, and its class."""
Tokens: TypeAlias = "torch.Tensor | list[torch.Tensor]"
"""Of a batch: padded to the longest, or a list."""


@dataclass(frozen=True)
class Corpus:
    """Sentences with classes."""

    sentences: list[Sentence]
    classes: int

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens, _ in self.sentences]


def lognormal(samples: int, seed: int = 1) -> Corpus:
    """Random tokens, lengths log-normal: some belong to the sentence's class, and can be learned.

    >>> lognormal(3).lengths
    [20, 28, 20]
    """
    draw = np.random.default_rng(seed)
    return Corpus([_random_sentence(draw, n) for n in draw_lengths(draw, samples)], _CLASSES)


def equal(samples: int, seed: int = 1) -> Corpus:
    """As `lognormal`, all of the same length."""
    draw = np.random.default_rng(seed)
    return Corpus([_random_sentence(draw, int(MEAN_LENGTH)) for _ in range(samples)], _CLASSES)


def draw_lengths(draw: np.random.Generator, samples: int) -> list[int]:
    """Log-normal, from 1 to LONGEST."""
    drawn = draw.lognormal(np.log(MEAN_LENGTH) - SIGMA**2 / 2, SIGMA, samples)
    lengths: list[int] = np.clip(np.rint(drawn), 1, LONGEST).astype(int).tolist()
    return lengths


def _random_sentence(draw: np.random.Generator, length: int) -> Sentence:
    label = int(draw.integers(_CLASSES))
    own = VOCABULARY // (2 * _CLASSES)
    common = draw.integers(1 + own * _CLASSES, VOCABULARY, length)
    of_class = draw.integers(1 + own * label, 1 + own * (label + 1), length)
    tokens = np.where(draw.random(length) < _OWN_WORDS, of_class, common)
    return torch.from_numpy(tokens), label


def topics(samples: int, seed: int = 1) -> Corpus:
    """English sentences of Python's documentation, as `help` has it; a class is a topic."""
    from pydoc_data.topics import topics as texts

    found = [
        (torch.tensor([number_word(word) for word in words[:LONGEST]]), label)
        for label, text in enumerate(texts.values())
        for words in split_sentences(text)
    ]
    chosen = np.random.default_rng(seed).permutation(len(found))
    # More than there are: some come again.
    return Corpus([found[place] for place in np.resize(chosen, samples).tolist()], len(texts))


def split_sentences(text: str) -> Iterator[list[str]]:
    """The words of each sentence; paragraphs of code and grammar are left out.

    >>> list(split_sentences("Names are bound. They\\nrefer to objects.\\n\\n      x = 1.0\\n"))
    [['Names', 'are', 'bound'], ['They', 'refer', 'to', 'objects']]
    """
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith(" " * 6) or "::=" in paragraph or ">>>" in paragraph:
            continue
        line = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(*`])", line):
            words = re.findall(r"[A-Za-z_]+", sentence)
            if len(words) >= _SHORTEST and sentence.endswith((".", "!", "?", ":")):
                yield words


def number_word(word: str) -> int:
    """The token of a word, the same in every process.

    >>> number_word("Tree") == number_word("tree")
    True
    """
    return 1 + crc32(word.lower().encode()) % (VOCABULARY - 1)


CORPORA: Mapping[str, Callable[[int], Corpus]] = {"lognormal": lognormal, "topics": topics}


class TreeLSTM(nn.Module):
    """Sentences, as a list, to logits: an LSTM cell joins two neighbours, up to the root of a tree.

    Nothing of it can be batched: every sentence has a tree of its own, drawn from its tokens.
    Tai, Socher and Manning 2015, arXiv:1503.00075.
    """

    def __init__(self, classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.leaves = nn.Embedding(VOCABULARY, 2 * hidden)
        self.cell = nn.Linear(2 * hidden, 5 * hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, sentences: Sequence[torch.Tensor]) -> torch.Tensor:
        roots = [self._read(sentence)[0] for sentence in sentences]
        logits: torch.Tensor = self.classifier(torch.stack(roots))
        return logits

    def _read(self, sentence: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(sentence) == 1:  # DDP wants every parameter in use: join the word with itself
            sentence = sentence.expand(2)
        states, memories = self.leaves(sentence).chunk(2, dim=1)
        leaves = list(zip(states.unbind(), memories.unbind(), strict=True))
        return self._join(leaves, sentence.tolist(), 0, len(leaves))

    def _join(
        self,
        leaves: Sequence[tuple[torch.Tensor, torch.Tensor]],
        tokens: Sequence[int],
        begin: int,
        end: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if end - begin == 1:
            return leaves[begin]
        middle = split_span(tokens, begin, end)
        left, left_memory = self._join(leaves, tokens, begin, middle)
        right, right_memory = self._join(leaves, tokens, middle, end)
        gates = self.cell(torch.cat((left, right))).chunk(5)
        enter, keep_left, keep_right, leave = torch.sigmoid(torch.stack(gates[:4])).unbind()
        memory = enter * torch.tanh(gates[4]) + keep_left * left_memory + keep_right * right_memory
        return leave * torch.tanh(memory), memory


def split_span(tokens: Sequence[int], begin: int, end: int) -> int:
    """Where a span of two or more tokens divides: anywhere, and always there.

    >>> split_span([7, 7], 0, 2), split_span([3, 1, 4, 1, 5], 0, 5), split_span([3, 1, 4], 1, 3)
    (1, 3, 2)
    """
    return begin + 1 + (31 * tokens[begin] + 17 * tokens[end - 1]) % (end - begin - 1)


@dataclass(frozen=True)
class Model:
    """What is trained: how to build it for so many classes, and how it gets its batches."""

    build: Callable[[int], nn.Module]
    collate: Callable[[Sequence[Sentence]], tuple[Tokens, torch.Tensor]]


def pad(sentences: Sequence[Sentence]) -> tuple[Tokens, torch.Tensor]:
    """A batch of sentences padded to its longest, and their classes."""
    tokens = pad_sequence([one for one, _ in sentences], batch_first=True, padding_value=PADDING)
    return tokens, _classes(sentences)


def enlist(sentences: Sequence[Sentence]) -> tuple[Tokens, torch.Tensor]:
    """The sentences as they are, and their classes."""
    return [tokens for tokens, _ in sentences], _classes(sentences)


def _classes(sentences: Sequence[Sentence]) -> torch.Tensor:
    return torch.tensor([label for _, label in sentences])


def _lstm(classes: int) -> nn.Module:
    return SentenceLSTM(VOCABULARY, embedding=128, hidden=256, classes=classes)


class TotalLength(nn.Module):
    """A model that takes no time: it knows nothing of a sentence but its length."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(1, classes)

    def forward(self, sentences: Sequence[torch.Tensor]) -> torch.Tensor:
        lengths = torch.tensor([[len(tokens) / MEAN_LENGTH] for tokens in sentences])
        logits: torch.Tensor = self.classifier(lengths)
        return logits


MODELS: Mapping[str, Model] = {
    "lstm": Model(_lstm, pad),
    "tree": Model(TreeLSTM, enlist),
    "length": Model(TotalLength, enlist),
}
