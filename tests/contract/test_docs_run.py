"""Every code block of the README and of docs/ runs; what cannot run here says why, above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.doc_blocks import Block, find_blocks, run_blocks

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = {"README.md"} | {
    f"docs/{name}.md"
    for name in ("choose", "faults", "finetune", "migrate", "parallel", "predict", "run-directory", "service", "train")
}
"""Pages whose blocks take longer; `make test-system` runs them."""


def documents() -> list[Any]:
    """All pages, the long ones marked."""
    names = {path.relative_to(ROOT).as_posix(): path for path in DOCUMENTS}
    return [
        pytest.param(path, id=name, marks=[pytest.mark.system] if name in LONG else []) for name, path in names.items()
    ]


@pytest.mark.parametrize("path", documents())
def test_blocks_run(path: Path, tmp_path: Path) -> None:
    failures = run_blocks(path, tmp_path)
    assert not failures, "\n".join(failures)


def document(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text)
    return path


GOOD = """
```python
# train.py
import sys
open("seen.txt", "a").write(f"{sys.argv[1:]}\\n")
```

1. in a list

   ```bash
   python train.py --again
   test "$(wc -l < seen.txt)" = 2
   ```

```console
$ echo one \\
>   two > out.txt
one two
$ grep -q "one two" out.txt
```

<!-- not run: needs eight GPUs -->

```bash
exit 9
```

```yaml
a: [
```
"""


def test_a_good_page_runs_top_to_bottom(tmp_path: Path) -> None:
    assert run_blocks(document(tmp_path, GOOD), tmp_path) == []
    assert (tmp_path / "seen.txt").read_text() == "[]\n['--again']\n"


def test_blocks_are_found_with_line_and_reason() -> None:
    blocks = find_blocks(GOOD)
    assert [block.language for block in blocks] == ["python", "bash", "console", "bash", "yaml"]
    assert blocks[3] == Block(24, "bash", "exit 9\n", "needs eight GPUs")
    assert [block.not_run for block in blocks if block.line != 24] == [None] * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\nraise SystemExit(3)\n```\n", "page.md:1: exit status 3"),
        ("```python\nimport drumline.no_such_room\n```\n", "No module named"),
        ("\n```bash\nfalse\ntrue\n```\n", "page.md:2: exit status 1"),
        ("```bash\nfalse | true\n```\n", "page.md:1: exit status 1"),
        ("```console\n$ drumline no-such-command\n```\n", "page.md:1: exit status 2"),
        ("<!-- not run: -->\n```bash\nexit 4\n```\n", "page.md:2: exit status 4"),
        ("<!-- not run: reason -->\ntext between\n```bash\nexit 4\n```\n", "page.md:3: exit status 4"),
        ("```bash\nsleep 30\n```\n", "page.md:1: not done after 0.5 s"),
    ],
)
def test_a_bad_block_is_told(tmp_path: Path, text: str, expected: str) -> None:
    failures = run_blocks(document(tmp_path, text), tmp_path, timeout=0.5 if "sleep" in text else 30.0)
    assert len(failures) == 1 and expected in failures[0]


@pytest.mark.parametrize("text", ["```\nrm\n```\n", "```sh\nls\n```\n", "```py\n1\n```\n", "```bash\nls\n"])
def test_a_block_that_would_be_passed_over_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1: "):
        find_blocks(text)
