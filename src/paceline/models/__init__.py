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
    "resnet50": "paceline.models.resnet:resnet50",
    "language_lstm": "paceline.models.language_lstm:LanguageLSTM",
    "transformer": "paceline.models.transformer:Transformer",
}
"""Name of a model, and the function that builds it."""
