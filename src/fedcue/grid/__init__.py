"""Grids of runs: methods, variants and seeds compared; settings chosen on validation images."""
