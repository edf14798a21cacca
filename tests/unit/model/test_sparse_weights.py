"""A file of weights that claims gigabytes and takes no room on disk takes none in memory either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.memory import peak_bytes

LARGE = 3 * 2**30


def sparse(path: Path) -> None:
    """Write a safetensors file of one tensor of 3 GiB that is all hole."""
    about = {"junk": {"dtype": "F16", "shape": [LARGE // 2], "data_offsets": [0, LARGE]}}
    head = json.dumps(about).encode()
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + LARGE)
    assert path.stat().st_blocks * 512 < 2**20


def test_weights_that_do_not_fit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    sparse(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    before = "from fedcue.errors import BackboneError; from fedcue.model.backbone import load_backbone"
    code = "try:\n    load_backbone('.')\nexcept BackboneError as error:\n    assert 'timm' in str(error)"
    assert peak_bytes(before, code, tmp_path) < 50 * 2**20


def test_a_report_does_not_read_tensors_by_the_gigabyte(tmp_path: Path) -> None:
    sparse(tmp_path / "analysis.safetensors")
    before = "from pathlib import Path; from fedcue.errors import RunFolderError\n"
    before += "from fedcue.report.run_files import tensors"
    code = "try:\n    tensors(Path('analysis.safetensors'))\nexcept RunFolderError as error:\n"
    assert peak_bytes(before, code + "    assert 'larger than 256 MiB' in str(error)", tmp_path) < 50 * 2**20


def test_a_process_forked_after_torch_used_its_threads_can_load_a_backbone() -> None:
    code = (
        "import multiprocessing, torch; from fedcue.model.backbone import load_backbone\n"
        "torch.set_num_threads(2)\n"
        "torch.rand(2000, 2000).half().float().sum()\n"
        "child = multiprocessing.get_context('fork').Process(target=load_backbone)\n"
        "child.start(); child.join(60); child.kill(); child.join()\n"
        "raise SystemExit(child.exitcode != 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
