"""Would training run here? Small checks by subject, then a world that is really formed."""
