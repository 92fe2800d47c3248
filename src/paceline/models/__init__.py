"""The networks that come with Paceline, by name; a framework is imported when one is built."""

from __future__ import annotations

MODELS = {
    "mnist": "paceline.models.mnist:MNISTNetwork",
    "mlp": "paceline.models.mlp:mlp",
    "lstm": "paceline.models.lstm:SentenceLSTM",
    "inception": "paceline.models.inception:inception",
    "alexnet": "paceline.models.alexnet:alexnet",
    "googlenet": "paceline.models.googlenet:googlenet",
    "vgg": "paceline.models.vgg:vgg",
}
"""Name of a model, and where the function that builds it stands."""
