"""The words of an exported model: its tokenizer and chat template, and the tokens that it ends an answer with."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from drumline.build.rows import tokenizer_hub, tokenizer_name
from drumline.build.trained import Trained
from drumline.config.schema import RunConfig
from drumline.data.hub import TOKENIZER_FILES, fetch, local_folder
from drumline.data.jinja_templates import find_template, own_template
from drumline.data.templates import Template, answer_ends
from drumline.data.tokenizers import load_tokenizer
from drumline.errors import ConfigError, DataError
from drumline.models.folder import OTHER_NAMES, copy_files
from drumline.rundir import write_atomic

TEMPLATE = "chat_template.jinja"
WRITERS = ("language_modelling", "preference")
"""Tasks after which a model writes on from what it is given."""


def write_words(trained: Trained, out: Path) -> list[str]:
    """Copy the tokenizer that the run read with, and write the chat template that it learned with.

    Returns the places of tokenizers that are not there any more.
    """
    config = trained.config
    name, missing = tokenizer_name(config), list[str]()
    if name != "byte":
        folder = local_folder(name)
        with suppress(ConfigError, DataError):
            folder = folder or fetch(name, "data.tokenizer", TOKENIZER_FILES, tokenizer_hub(config))
        if folder is None or not folder.is_dir():
            missing.append(name)
        else:
            copy_files(folder, out, (*TOKENIZER_FILES, *OTHER_NAMES))
    template = getattr(config.data, "template", None)
    if template is not None:
        write_atomic(out / TEMPLATE, find_template(template, None).source)
    return missing


def learned_ends(config: RunConfig, out: Path) -> tuple[list[int], int | None]:
    """The ids that an answer may end with after training, by the words in an exported folder, and the one that pads.

    The one after each text, and the one after the assistant's turn in the chat template, where there is one.
    """
    if config.task.kind not in WRITERS or config.data is None:
        return [], None
    try:
        tokenizer = load_tokenizer(str(out))
    except DataError:  # the run read bytes, or there is no tokenizer any more
        return [], None
    found = own_template(out)
    template = None if found is None else Template(found, tokenizer)
    return answer_ends([], tokenizer, template), int(tokenizer.pad_id)
