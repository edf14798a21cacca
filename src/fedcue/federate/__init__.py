"""The simulator: clients, rounds, executors and the run itself."""
