"""Real clusters, made on one machine for the tests: ssh hosts, Slurm, Grid Engine."""
