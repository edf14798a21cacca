"""``python -m fedcue`` is the ``fedcue`` command."""

import os
import sys

_READING = {"resume", "evaluate", "predict", "export", "push", "report", "figure", "watch", "data"}
"""Verbs that read folders, which may lie where the command is started."""

if _READING & set(sys.argv[1:]):  # python -m puts that place before everything else that is imported
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]

from fedcue.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
