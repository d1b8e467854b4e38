"""What can be learned from rows with these columns by this kind of model: the choice of a task, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from drumline.config.problem import listed, shown_name
from drumline.errors import ConfigError

Family = Literal["causal", "encoder", "encoder_decoder"]

CHAT = ("messages", "conversations")
PROMPTS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
)
SOURCES = (
    ("source", "target"),
    ("article", "highlights"),
    ("article", "summary"),
    ("document", "summary"),
    ("dialogue", "summary"),
    ("text", "summary"),
)
TEXTS = ("text", "content", "body", "sentence", "document", "review", "tweet", "abstract")
TEXT_PAIRS = (("text", "text_pair"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"))
LABELS = ("label", "labels", "class", "category", "topic", "sentiment", "intent", "score", "rating", "target")
"""Names that public data sets give such columns, the usual one first."""

MOST_CLASSES = 100
"""Whole numbers with more different values than this are taken for amounts."""

WRITES = ("language_modelling", "preference")
"""Tasks of a model that writes on."""


@dataclass(frozen=True)
class ColumnSeen:
    """One column of the first rows."""

    types: tuple[str, ...]
    """As data/schema.py names them, null left out."""
    num_distinct: int | None = None
    """None: more than are counted."""

    @property
    def is_text(self) -> bool:
        """Whether it holds text alone."""
        return self.types == ("text",)


@dataclass(frozen=True)
class TaskFound:
    """A task that the columns allow."""

    task: str
    texts: tuple[str, ...]
    """The data's own names of the columns that become tokens."""
    why: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """data.columns, where the data's names are others than the task's."""
    row_format: str = "auto"
    """data.row_format of language_modelling."""


Columns = Mapping[str, ColumnSeen]


def choose_task(columns: Columns, family: Family, asked: str | None = None) -> TaskFound:
    """Pure: the task for these columns and this kind of model; `asked`: the one that somebody wants.

    Raises ConfigError, which names the columns, where there is none, or the model cannot do it.
    """
    finders: dict[str, Callable[[], TaskFound | None]] = {
        "preference": lambda: _preference(columns),
        "token_classification": lambda: _by_names(columns, "token_classification", ("tokens", "tags")),
        "contrastive": lambda: _by_names(columns, "contrastive", ("anchor", "positive")),
        "classification": lambda: _labelled(columns, asked),
        "sequence_to_sequence": lambda: _from_to(columns, ("source", "target"), "sequence_to_sequence", family),
        "language_modelling": lambda: _written(columns, family),
    }
    finders |= {"multi_label": finders["classification"], "regression": finders["classification"]}
    if asked is not None:
        found = finders[asked]() if asked in finders else None
        if found is None:
            raise ConfigError(
                f"--task {asked}: the rows do not have what it needs; their columns are {_names(columns)}",
                f"name a task that they serve, or say which column is which: --set data.columns={{{_wanted(asked)}}}"
                + _headless(columns),
            )
    else:
        order: Sequence[str] = list(finders)[:6]
        if any(name in columns for name in CHAT):
            order = ["preference", "language_modelling"]  # whatever else a chat carries along
        elif family == "encoder_decoder":
            order = [name for name in order if name != "language_modelling"]
        found = next((each for name in order if (each := finders[name]()) is not None), None)
    if found is None:
        raise ConfigError(
            f"nothing that a model of this kind ({_kind(family)}) can learn is told by the columns {_names(columns)}",
            "say which column is which, as in --set data.columns={text: body, label: topic}, or name a --task"
            + _headless(columns),
        )
    if found.task in WRITES and family != "causal":
        raise ConfigError(
            f"{found.why}, which is {found.task}, and the model is {_kind(family)}",
            "take a model that writes on (...ForCausalLM), or rows with a label; --task says what to learn",
        )
    return found


def _preference(columns: Columns) -> TaskFound | None:
    if "chosen" not in columns or "rejected" not in columns:
        return None
    texts = tuple(name for name in ("prompt", "chosen", "rejected") if name in columns)
    return TaskFound("preference", texts, f"the rows have {listed(texts, 'and')}")


def _by_names(columns: Columns, task: str, names: tuple[str, str]) -> TaskFound | None:
    if any(name not in columns for name in names):
        return None
    texts = names[:1] if task == "token_classification" else names
    return TaskFound(task, texts, f"the rows have {names[0]} and {names[1]}")


def _labelled(columns: Columns, asked: str | None) -> TaskFound | None:
    label = next((name for name in LABELS if name in columns and not _is_prose(columns[name])), None)
    if label is None:
        return None
    pair = next((pair for pair in TEXT_PAIRS if all(name in columns for name in pair)), None)
    texts = pair or _text(columns, but=label)
    if not texts:
        return None
    roles = dict(zip(("text", "text_pair"), texts, strict=False)) | {"label": label}
    task, what = _kind_of_label(columns[label])
    why = f"the rows have {listed(texts, 'and')} with {label}, {what}"
    # A second text is looked for only where the settings name it.
    kept = {role: own for role, own in roles.items() if role != own or role == "text_pair"}
    return TaskFound(asked or task, tuple(texts), why, kept)


def _kind_of_label(label: ColumnSeen) -> tuple[str, str]:
    if "list" in label.types:
        return "multi_label", "a list of classes a row"
    if "number" in label.types:
        return "regression", "a number a row"
    if label.types == ("whole number",) and (label.num_distinct is None or label.num_distinct > MOST_CLASSES):
        return "regression", f"a whole number with more than {MOST_CLASSES} different values"
    return "classification", "a class a row"


def _is_prose(column: ColumnSeen) -> bool:
    """Whether a column of texts has too many different ones to be classes."""
    return column.is_text and column.num_distinct is None


def _from_to(columns: Columns, roles: tuple[str, str], task: str, family: Family) -> TaskFound | None:
    """One text from another, under the names that the task has for the two."""
    if task == "sequence_to_sequence" and family != "encoder_decoder":
        return None
    for pair in (roles, *PROMPTS, *SOURCES):
        if all(name in columns for name in pair):
            mapping = {role: own for role, own in zip(roles, pair, strict=True) if role != own}
            if task == "language_modelling" and pair == ("instruction", "output"):
                # With `input` between the two: read as such, without other names.
                texts, mapping = tuple(name for name in ("instruction", "input", "output") if name in columns), {}
                return TaskFound(task, texts, f"the rows have {listed(texts, 'and')}", mapping, "prompt_completion")
            form = "prompt_completion" if task == "language_modelling" else "auto"
            return TaskFound(task, pair, f"the rows have {pair[0]} and {pair[1]}", mapping, form)
    return None


def _written(columns: Columns, family: Family) -> TaskFound | None:
    """What a model that writes on learns: chats, answers to prompts, or plain texts."""
    chat = next((name for name in CHAT if name in columns), None)
    if chat is not None:
        return TaskFound("language_modelling", (chat,), f"the rows have {chat}: chats", {}, "chat")
    found = _from_to(columns, ("prompt", "completion"), "language_modelling", family)
    if found is not None:
        return found
    texts = _text(columns)
    if not texts:
        return None
    mapping = {"text": texts[0]} if texts[0] != "text" else {}
    return TaskFound("language_modelling", texts, f"the rows have {texts[0]}: plain texts", mapping, "text")


def _text(columns: Columns, but: str = "") -> tuple[str, ...]:
    """The column of texts: by name, else the only one that holds text, unless its name is itself a text."""
    named = [name for name in TEXTS if name in columns and name != but]
    only = [name for name, column in columns.items() if column.is_text and name != but]
    found = named[:1] or (only if len(only) == 1 and not _reads_like_a_text(only[0]) else [])
    return tuple(found)


def _reads_like_a_text(name: str) -> bool:
    """Whether a name may be a row's text, as in a table without a line of names."""
    return shown_name(name) != name


def _headless(columns: Mapping[str, Any]) -> str:
    return "; a table begins with a line of names" if any(map(_reads_like_a_text, columns)) else ""


def _names(columns: Mapping[str, Any]) -> str:
    shown = [repr(shown_name(name)) for name in list(columns)[:20]]
    return listed(shown, "and") or "none"


def _kind(family: Family) -> str:
    return {"causal": "one that writes on", "encoder": "an encoder", "encoder_decoder": "encoder and decoder"}[family]


def _wanted(task: str) -> str:
    roles = {
        "preference": "prompt: ..., chosen: ..., rejected: ...",
        "token_classification": "tokens: ..., tags: ...",
        "contrastive": "anchor: ..., positive: ...",
        "sequence_to_sequence": "source: ..., target: ...",
        "language_modelling": "text: ...",
    }
    return roles.get(task, "text: ..., label: ...")
