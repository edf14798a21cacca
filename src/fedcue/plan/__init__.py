"""What a run would do and cost, and how close to the machine's limit it runs."""
