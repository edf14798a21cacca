"""The run folder: the only place that writes what a run leaves behind."""
