"""Tests of the report, one file per module."""
