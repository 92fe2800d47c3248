"""A run seen from its directory while it trains."""
