"""Ranks that are threads of one process."""

from support.warm_kernels import warm_kernels  # noqa: F401
