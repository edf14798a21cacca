"""The trained model as files that others run without fedcue."""
