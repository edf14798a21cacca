"""The figures, one module per family: each makes a figure of groups of runs, or none without its data."""
