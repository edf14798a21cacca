"""The same runs on real machines, over Flower: the only package that imports flwr."""
