"""`drumline chat`: talk to a model that a run has trained, or that lies in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json
from drumline.cli.run_directory import Step

if TYPE_CHECKING:
    from drumline.cli.speaking import Speaking

HELP = "/reset begins anew, /system TEXT sets what the model is told first; Ctrl-C stops an answer, Ctrl-D ends"

Message = dict[str, str]


def register(app: typer.Typer) -> None:
    """Add the command `chat`."""
    app.command("chat")(chat)


def chat(
    source: Annotated[
        str, typer.Argument(metavar="RUN|FOLDER", help="A run, an exported folder, or a model's name on the hub.")
    ],
    prompt: Annotated[str | None, typer.Option(help="Answer this and end; - reads standard input to its end.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="tokens (most of an answer), temperature, seed, raw=true (no chat template) or device=cpu; may be "
            "given again.",
        ),
    ] = None,
    step: Step = None,
    as_json: Json = False,
) -> None:
    """Talk to a model: words appear as they are written.

    From a pipe each line is one turn. A model that was trained on chats is spoken to in its chat template; any other
    one goes on from what it is given.
    """
    from drumline.cli.speaking import Speaking
    from drumline.config.chat import chat_settings

    settings = chat_settings(overrides or ())
    wishes = {
        "step": step,
        "raw": settings.raw,
        "max_new_tokens": settings.tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
    }
    with Speaking(source, wishes, uses_gpu=settings.device == "auto") as speaking:
        conversation = Conversation(speaking, system, as_json=as_json)
        if prompt is not None:
            conversation.ask(sys.stdin.read().rstrip("\n") if prompt == "-" else prompt)
        elif sys.stdin.isatty():
            interactive(conversation)
        else:
            for line in sys.stdin:
                if line.strip():
                    conversation.ask(line.rstrip("\n"))


class Conversation:
    """What has been said so far, and how answers are shown."""

    def __init__(self, speaking: Speaking, system: str | None, *, as_json: bool) -> None:
        self.speaking = speaking
        self._as_json = as_json
        self._system = system
        self._messages: list[Message] = []
        self.reset(system)

    def reset(self, system: str | None = None) -> None:
        """Begin anew; system: what the model is told first, from here on where it is given."""
        self._system = system if system is not None else self._system
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> None:
        """Put a question, and show the answer as it comes. What a model cannot answer leaves no trace in what was said.

        Raises the error that the model gives.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        show: Callable[[str], None] = (lambda piece: None) if self._as_json else write
        done = self.speaking.ask(messages, show)
        self._messages = [*messages, {"role": "assistant", "content": done["answer"]}]
        if self._as_json:
            print_line(done)
        else:
            write("\n")


def interactive(conversation: Conversation) -> None:
    """Ask on a terminal until Ctrl-D."""
    from drumline.errors import DrumlineError

    about = conversation.speaking.about
    how = HELP if about["chats"] else "it goes on from each text; Ctrl-C stops it, Ctrl-D ends"
    typer.echo(f"{about['about']} ({about['device']}): {how}", err=True)
    with suppress(ImportError):
        import readline  # noqa: F401  # lets arrows edit a line, and call up earlier ones
    while True:
        try:
            text = input("> ")
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            continue
        if not text.strip():
            continue
        if text.startswith("/") and about["chats"]:
            obey(conversation, text)
            continue
        try:
            conversation.ask(text)
        except DrumlineError as error:
            if conversation.speaking.has_ended:
                raise
            typer.echo(str(error), err=True)


def obey(conversation: Conversation, text: str) -> None:
    """Do what a line that begins with a slash asks for."""
    word, _, rest = text.partition(" ")
    if word == "/reset":
        conversation.reset()
    elif word == "/system":
        conversation.reset(rest.strip())
    else:
        typer.echo(f"{word} is not known: {HELP}", err=True)


def write(piece: str) -> None:
    """Show a piece of text at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def print_line(record: dict[str, Any]) -> None:
    """One answer as one line of JSON."""
    import json

    write(json.dumps(record) + "\n")
