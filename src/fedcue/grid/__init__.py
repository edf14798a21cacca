"""Many runs: comparing methods and settings, choosing rates."""
