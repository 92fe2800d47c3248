"""A small language model: embedding, LSTM, and the next token."""

from __future__ import annotations

import torch
from torch import nn

from paceline.models.tokens import embed

_RANGE = 0.1


class LanguageLSTM(nn.Module):
    """Tokens (n, length) to logits (n, vocabulary, length) of the token after each.

    The small network of Zaremba et al. 2014, Recurrent Neural Network Regularization,
    arXiv:1409.2329: two layers of 200 units, weights drawn between -0.1 and 0.1; dropout, where
    asked for, is between layers and never on the way through time. As it is it knows the 256
    bytes, with 745,856 parameters; the paper's 10,000 words make it 4,653,200. Every sample begins
    with an empty state.
    """

    def __init__(
        self, vocabulary: int = 256, width: int = 200, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.drop = nn.Dropout(dropout)
        self.next = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_RANGE, _RANGE)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.drop(embed(self.embedding, tokens)))
        logits: torch.Tensor = self.next(self.drop(states))
        return logits.transpose(1, 2)  # classes second, as torch's cross_entropy has them
