"""What protects clients: noise and clipping on what leaves them, and the account of what was released."""
