"""How a block of the five documents is run: what is changed in it, what stands before it, what is checked after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["import line", "stand-in", "GPU count", "address or path", "endless made finite", "not valid Python"]
"""The only ways in which a block may be adapted."""


@dataclass(frozen=True)
class Mend:
    """A change of a block's text: `old`, which must be in it as often as is said, becomes `new`."""

    kind: Kind
    old: str
    new: str
    times: int = 1

    def apply(self, text: str) -> str:
        """The changed text. Raises ValueError where the text is not what the change was made for."""
        if text.count(self.old) != self.times:
            raise ValueError(f"{self.old!r} is {text.count(self.old)} times in the block, not {self.times}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Case:
    """One block. The program that runs is `before`, the mended block, `after`; for YAML, Python that reads block.yaml.

    before: what the document takes for granted: models, data and variables of the reader's (a stand-in, if not empty).
    after: checks of what the block did; an assertion that fails fails the test.
    instead: for a block that no machine of a test can run, or that is about something that drumline replaces: what runs
    instead of it, and why; `shown` for text that is no code, of which `after` checks what it shows.
    """

    mends: tuple[Mend, ...] = ()
    before: str = ""
    after: str = ""
    instead: str = ""
    why: str = ""
    """For the table: GPU only, replaced by what, or how it was mended, where the kinds of mends do not say it."""
    is_gpu_only: bool = False
    awaits: bool = False
    """Python with `await` outside of a coroutine: it is put into one."""
    files: tuple[tuple[str, str], ...] = ()
    """Name and text of files that lie in the folder: scripts that a command starts."""
    timeout_s: float = 600.0
    is_long: bool = False
    """`make test-long` runs it; something shorter in CI checks the same part of drumline."""

    def kinds(self) -> list[str]:
        """In what ways the block was adapted, in the order of the list."""
        kinds = {mend.kind for mend in self.mends} | ({"not valid Python"} if self.awaits else set())
        kinds |= {"stand-in"} if self.before or self.files else set()
        return [kind for kind in Kind.__args__ if kind in kinds]  # type: ignore[attr-defined]

    def result(self, language: str) -> str:
        """The table's word for it."""
        if language == "text":
            return f"no code: {self.why}"
        if self.instead:
            return f"{'GPU only' if self.is_gpu_only else 'replaced by'}: {self.why}"
        kinds = self.kinds()
        if not kinds:
            return "as written"
        return f"mended: {', '.join(kinds)}" + (f" ({self.why})" if self.why else "")
