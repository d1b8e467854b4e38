"""What `drumline chat` starts: a process that answers, a line of JSON a question and a line a piece of an answer.

Lines in: {"ask": [messages]}, and {"stop": true} while an answer is written. Lines out: {"ready": ...} once, {"text":
...} for each piece, {"done": ...} after each answer, {"problem": ..., "fix": ..., "code": ...} instead. It ends with
its standard input.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from drumline.build.speaker import Speaker, load_speaker
from drumline.errors import DrumlineError
from drumline.launcher.processes import die_with_parent
from drumline.models.writing import Wishes

Say = Callable[[dict[str, Any]], None]


class Questions:
    """What comes in, read by a thread, so that an answer can be stopped while it is written."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stop = threading.Event()
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._read, name="drumline-chat", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._source:
            asked = json.loads(line)
            if asked.get("stop"):
                self._stop.set()
            else:
                self._queue.put(asked)
        self._gone.set()
        self._queue.put(None)

    def next(self) -> dict[str, Any] | None:
        """The next question; None where there are no more."""
        asked = self._queue.get()
        if asked is not None:
            self._stop.clear()
        return asked

    def goes_on(self) -> bool:
        """Whether the answer that is being written is still wanted."""
        return not (self._stop.is_set() or self._gone.is_set())


def converse(speaker: Speaker, questions: Questions, wishes: Wishes, say: Say) -> None:
    """Answer each question, until there are no more."""

    def piece(text: str) -> bool:
        if text:
            say({"text": text})
        return questions.goes_on()

    while (asked := questions.next()) is not None:
        try:
            text, answer = speaker.answer(asked["ask"], wishes, piece)
        except DrumlineError as error:
            say(told(error))
            continue
        done = {"answer": text, "tokens": len(answer.ids), "seconds": round(answer.seconds, 3), "ended": answer.ended}
        say({"done": done})


def told(error: DrumlineError) -> dict[str, Any]:
    """An error as a line."""
    return {"problem": error.problem, "fix": error.fix, "code": error.code}


def main(source: str, options: dict[str, Any]) -> None:
    """Load the model and answer what comes in."""
    # Lines go to a copy, so that what a library prints cannot come between them.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(record: dict[str, Any]) -> None:
        out.write(json.dumps(record) + "\n")
        out.flush()

    step, raw = options.pop("step", None), bool(options.pop("raw", False))
    try:
        speaker = load_speaker(source, step, raw=raw)
    except DrumlineError as error:
        say(told(error))
        return
    device = str(next(speaker.model.parameters()).device)
    say({"ready": {"about": speaker.about, "chats": speaker.template is not None, "device": device}})
    converse(speaker, Questions(sys.stdin), Wishes(**options), say)


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())  # whoever asks may be killed
    main(sys.argv[1], json.loads(sys.argv[2]))
