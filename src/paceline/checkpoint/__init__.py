"""Checkpoints: what a run needs to continue later as if it had never stopped."""
