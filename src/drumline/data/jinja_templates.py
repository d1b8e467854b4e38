"""Chat templates: where they come from, and messages rendered by them. The only file that imports jinja2.

What a template is given is what transformers gives it: messages, tools, bos_token and its like, add_generation_prompt,
the filter tojson, raise_exception, strftime_now, and the tag {% generation %} around what the assistant writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from drumline.config.recipes import expand_path
from drumline.data.chat import Message
from drumline.errors import ConfigError, DataError, MissingExtra

FOLDER = Path(__file__).with_name("chat_templates")
PACKED = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))
"""Names of the templates that come with the package."""
OPENS, CLOSES = "\U000f0001", "\U000f0002"
"""Stand around what the assistant writes in a rendered text: private code points, which messages are kept free of."""
TODAY = datetime(2024, 7, 26)
"""What a template that asks for the date is told: a row must give the same tokens each day."""
_LONGEST = 200
"""Characters of what a template says that an error repeats."""


class Found(NamedTuple):
    """The source of a template, and where it is from."""

    source: str
    where: str


def find_template(name: str | None, folder: Path | None) -> Found:
    """The template that data.template names: a packed one or a file; None: the one in the tokenizer's folder.

    Raises ConfigError, which lists the packed ones, for a name that is neither, and where the folder has none.
    """
    choice = f"set data.template to one of {', '.join(PACKED)}, or to a file with a Jinja chat template"
    if name is None:
        own = None if folder is None else own_template(folder)
        if own is None:
            what = "the tokenizer" if folder is None else f"the tokenizer in {folder}"
            raise ConfigError(f"{what} has no chat template, and data.template is not set", choice)
        return own
    if name in PACKED:
        return Found((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), f"the packed template {name}")
    file = Path(expand_path(name)).expanduser()
    if not file.is_file():
        raise ConfigError(f"data.template: {name!r} is neither a packed template nor a file", choice)
    try:
        return Found(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.template: {file} cannot be read as text: {error}", choice) from error


def own_template(folder: Path) -> Found | None:
    """The template of a tokenizer's folder, in either of the files that hold one; None where it has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return Found(file.read_text(encoding="utf-8"), str(file))
    for file in (folder / "tokenizer_config.json", folder / "chat_template.json"):
        try:
            value = json.loads(file.read_text(encoding="utf-8")).get("chat_template")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, list):  # several by name
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            value = named.get("default")
        if isinstance(value, str):
            return Found(value, str(file))
    return None


class Renderer:
    """Turns messages into text by one template; `tokens` are the names that it may use, as bos_token.

    Pickled by its source. Raises ConfigError for a template that cannot be compiled, MissingExtra without jinja2.
    """

    def __init__(self, found: Found, tokens: Mapping[str, str]) -> None:
        self.source, self.where = found
        self.tokens = dict(tokens)
        self._compiled: Any = None
        self._ready()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    @property
    def marks(self) -> bool:
        """Whether the template itself says what the assistant writes."""
        return "endgeneration" in self.source

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, prompt: bool = False) -> str:
        """The text of some messages; `prompt`: and of what stands before the assistant's next words.

        What stands inside {% generation %} is between OPENS and CLOSES. Raises DataError where the template refuses.
        """
        template, errors = self._ready()
        try:
            text: str = template.render(
                messages=list(messages), tools=tools or None, add_generation_prompt=prompt, **self.tokens
            )
        except (errors, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # What is said must not be a message's words: of Python's own errors only the kind is told.
            words = (message["content"] for message in messages if message["content"])
            own = isinstance(error, errors) and not any(text in str(error) for text in words)
            said = str(error)[:_LONGEST] if own else type(error).__name__
            raise DataError(
                f"the chat template in {self.where} refuses a row's messages: {said}",
                "correct the row, or take another template: --set data.template=chatml, for instance",
            ) from None
        return text

    def _ready(self) -> tuple[Any, type[Exception]]:
        try:
            import jinja2
        except ImportError:
            raise MissingExtra("jinja2", "hf") from None
        if self._compiled is None:
            try:
                self._compiled = _environment().from_string(self.source)
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(
                    f"the chat template in {self.where} is no Jinja template: line {error.lineno}: {error.message}",
                    f"correct it, or take one of {', '.join(PACKED)}",
                ) from error
        return self._compiled, jinja2.TemplateError


def _environment() -> Any:
    """What transformers compiles templates with: no access to Python beyond the values, whitespace of tags removed."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (jinja2's own way)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            return f"{OPENS}{caller()}{CLOSES}"

    def raise_exception(message: object) -> str:
        raise TemplateError(str(message))

    def strftime_now(form: str) -> str:
        return TODAY.strftime(form)

    def tojson(value: Any, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **more})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment
