"""The federated prompt-tuning methods: one file each, on the contract of ``base.Method``."""
