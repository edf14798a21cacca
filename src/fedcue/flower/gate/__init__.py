"""What a deployment shows to the outside: a gate that lets nodes through to Flower, and nothing else."""
