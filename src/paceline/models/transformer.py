"""A small Transformer language model: each token attends to those before it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from paceline.errors import ConfigError, DataError
from paceline.models.tokens import embed

_STD = 0.02


class Attention(nn.Module):
    """Several heads, each of which mixes the values of a token and of those before it.

    Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"width is {width} and heads {heads}; the width must be a multiple")
        self.heads, self.dropout = heads, dropout
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        n, length, width = states.shape
        parts = self.project(states).view(n, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        merged: torch.Tensor = self.merge(mixed.transpose(1, 2).reshape(n, length, width))
        return merged


class Block(nn.Module):
    """Attention and two dense layers, each on normalised states and added to them."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attend = nn.Sequential(
            nn.LayerNorm(width), Attention(width, heads, dropout), nn.Dropout(dropout)
        )
        self.think = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.attend(states)
        thought: torch.Tensor = self.think(states)
        return states + thought


class Transformer(nn.Module):
    """Tokens (n, length) to logits (n, vocabulary, length) of the token after each.

    The form of GPT-2 (Radford et al. 2019, Language Models are Unsupervised Multitask Learners):
    normalisation before each part, learned positions, and the embedding used again for the logits.
    As it is it knows the 256 bytes and has 858,880 parameters; with GPT-2's own sizes (50257, 1024,
    768, 12, 12) it has 124,439,808. Samples may be shorter than `length`.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        length: int = 256,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self._draw_weights(layers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        vectors = embed(self.tokens, tokens)
        length, most = tokens.shape[1], self.positions.num_embeddings
        if length > most:
            raise DataError(
                f"samples have {length} tokens, and this transformer takes up to {most}; cut "
                "them, or build it with a larger length, from file.py:function"
            )
        states = vectors + self.positions.weight[:length]
        states = self.norm(self.blocks(self.drop(states)))
        logits = F.linear(states, self.tokens.weight)
        return logits.transpose(1, 2)  # classes second, as torch's cross_entropy has them

    def _draw_weights(self, layers: int) -> None:
        """As in GPT-2: the more residual branches there are, the smaller their initial weights."""
        for name, part in self.named_modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                added = name.endswith(("attend.1.merge", "think.3"))
                nn.init.normal_(part.weight, std=_STD / (2 * layers) ** 0.5 if added else _STD)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)
