"""``python -m fedcue`` is the ``fedcue`` command."""

from fedcue.cli.main import main

if __name__ == "__main__":
    main()
