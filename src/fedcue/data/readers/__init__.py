"""Readers: from files as they lie on disk or on the hub to a dataset."""
