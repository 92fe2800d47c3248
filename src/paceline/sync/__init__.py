"""Carrying out a rule: exchanges between ranks, and the parameter server."""
