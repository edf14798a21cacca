"""The clients of one machine: what each of them does, and what a server may know of them."""
