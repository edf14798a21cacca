"""What is done with a finished run: predict with its model, test it again."""
