"""A disk that fills up in the middle of a record, by a limit on file sizes in a child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from drumline.rundir import read_lines

SCRIPT = """
import resource, signal, sys
from pathlib import Path
from drumline.rundir import LineWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
writer = LineWriter(Path(sys.argv[1]))
for step in (1, 2):
    try:
        writer.write({"time": 0.0, "step": step, "text": "x" * 40})
    except OSError as error:
        print(step, error.strerror)
"""


def test_a_record_that_does_not_fit_is_an_error_and_spoils_none_before_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    result = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "2 No space left on device\n"), result.stderr
    assert path.stat().st_size == 100
    assert [record["step"] for record in read_lines(path)] == [1]
