"""An embedding of tokens, with clear errors for wrong ones."""

from __future__ import annotations

import torch
from torch import nn

from paceline.errors import DataError


def embed(embedding: nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    """The vectors (n, length, width) of tokens (n, length)."""
    if tokens.is_floating_point() or tokens.is_complex():
        raise DataError(
            f"tokens are {tokens.dtype}, expected whole numbers; save them as int16 or wider "
            "(bytes are taken for pixels)"
        )
    if tokens.dim() != 2:
        raise DataError(f"tokens have the shape {tuple(tokens.shape)}, expected (n, length)")
    try:
        vectors: torch.Tensor = embedding(tokens)
    except IndexError:
        known = embedding.num_embeddings
        wrong = tokens[(tokens < 0) | (tokens >= known)]
        raise DataError(
            f"token {int(wrong[0])} is out of range: the model takes 0 to {known - 1}; "
            "build it with a larger vocabulary, from file.py:function"
        ) from None
    return vectors
