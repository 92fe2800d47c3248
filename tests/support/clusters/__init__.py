"""Real clusters on this machine."""
