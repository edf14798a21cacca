"""Tests of the figures, one file per module."""
