"""Checkpoints: what a run needs to go on later as if it had never stopped."""
