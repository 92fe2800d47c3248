"""A small network for sentences: embedding, LSTM, classes."""

from __future__ import annotations

import torch
from torch import nn

PADDING = 0
"""The token that pads sentences shorter than others of their batch."""


class SentenceLSTM(nn.Module):
    """Tokens (n, length), numbered from 1, to logits; 1,675,778 parameters as it is.

    The state behind a sentence's last token decides its class, however much padding follows.
    Hochreiter and Schmidhuber 1997, Long Short-Term Memory.
    """

    def __init__(
        self, vocabulary: int = 10_000, embedding: int = 128, hidden: int = 256, classes: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        last = ((tokens != PADDING).sum(1) - 1).clamp(min=0)
        sentences = torch.arange(len(tokens), device=tokens.device)
        logits: torch.Tensor = self.classifier(states[sentences, last])
        return logits
