"""A model that answers: out of a run's checkpoint, or out of a Hugging Face folder, with its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline.build.rows import tokenizer_hub, tokenizer_name
from drumline.build.trained import Trained, folder_of, read_trained, whole_weights
from drumline.build.words import WRITERS
from drumline.config.kept import Asked
from drumline.config.model import DecoderModel, HuggingFaceModel
from drumline.data.chat import Message
from drumline.data.hub import local_folder
from drumline.data.jinja_templates import own_template
from drumline.data.templates import Template, answer_ends, load_template
from drumline.data.tokenizers import Tokenizer, has_tokenizer, load_tokenizer
from drumline.errors import ConfigError, MissingExtra
from drumline.models.adapter_files import SETTINGS, with_folder
from drumline.models.decoder import decoder_from_config
from drumline.models.folder import CONFIG, cast, model_of
from drumline.models.generation import FILE, ids_of
from drumline.models.hub import find_folder
from drumline.models.writing import Answer, Wishes, write_on
from drumline.parallel.keys import load_weights
from drumline.rundir import RunDir, read_json, read_lines

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a character reads as until all of its tokens are there."""


@dataclass(frozen=True)
class Speaker:
    """A causal model with the words that it was trained with."""

    model: nn.Module
    tokenizer: Tokenizer
    template: Template | None
    """None: it goes on from a text as it stands."""
    settings: dict[str, Any]
    """As in a generation_config.json."""
    ends: tuple[int, ...]
    """Ids that end an answer."""
    about: str
    """What it is, in one line."""

    def answer(self, messages: Sequence[Message], wishes: Wishes, say: Callable[[str], bool]) -> tuple[str, Answer]:
        """Answer a conversation, or go on from the last message where there is no template; the text, and its facts.

        say: is told each new piece of the text, and says whether to go on. Raises ConfigError and DataError for what
        the model cannot answer.
        """
        if self.template is not None:
            ids = self.template.prompt(messages).tolist()
        else:
            ids = self.tokenizer.encode(messages[-1]["content"]).tolist()
        given, said = list[int](), ""

        def seen(number: int) -> bool:
            nonlocal said
            given.append(number)
            text = self.tokenizer.decode(given)
            if text.endswith(UNFINISHED):
                return say("")
            new, said = text[len(said) :], text
            return say(new)

        found = write_on(self.model, ids, self.ends, self.settings, wishes, seen)
        whole = self.tokenizer.decode(list(found.ids))
        if rest := whole[len(said) :]:
            say(rest)
        return whole, found


def load_speaker(source: str, step: Asked = None, *, raw: bool = False) -> Speaker:
    """The model of a run directory, a folder or a name on the hub, on the GPU that this process sees, else on the CPU.

    raw: without the chat template. Raises ConfigError where it is no causal language model.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if RunDir(Path(source)).config.is_file():
        speaker = of_run(read_trained(RunDir(Path(source)), step), device, raw=raw)
    elif step is not None:
        raise ConfigError(f"{source} is no run directory, and --step is given", "leave --step out")
    else:
        speaker = of_folder(source, device, raw=raw)
    speaker.model.to(device).eval()
    return speaker


def of_run(trained: Trained, device: torch.device, *, raw: bool) -> Speaker:
    """The model of a checkpoint. It chats where the run read chats."""
    config: Any = trained.config
    if config.task.kind not in WRITERS or config.data is None or config.data.kind == "random_tokens":
        raise ConfigError(f"a model for {config.task.kind} does not write", "give a run of language_modelling")
    tokenizer = load_tokenizer(tokenizer_name(config), tokenizer_hub(config))
    weights, base = whole_weights(trained), folder_of(trained)
    if isinstance(config.model, DecoderModel):
        model: Any = decoder_from_config(config.model, tokenizer.vocab_size, config.data.context)
        load_weights(model, weights)
    else:
        if device.type == "cuda":
            weights = cast(weights, torch.bfloat16)
        model = model_of(weights, trained.run.model)
        if model is None:
            raise ConfigError(f"a model of kind {config.model.kind} does not write", "give a run of another model")
    template = None if raw or not was_chat(trained.run) else load_template(config.data.template, tokenizer)
    settings = read_json(base / FILE) if base is not None and (base / FILE).is_file() else {}
    return speaker_of(model, tokenizer, template, settings, f"{trained.run.path}, after update {trained.step:,}")


def was_chat(run: RunDir) -> bool:
    """Whether the run read its rows with a chat template, as its events say."""
    told = [line for line in read_lines(run.events) if line.get("event") == "data"]
    return bool(told and told[-1].get("template"))


def of_folder(source: str, device: torch.device, *, raw: bool) -> Speaker:
    """The model of a Hugging Face folder, or of one with an adapter, whose model is loaded from where it says."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    folder = local_folder(source)
    adapter = folder is not None and (folder / SETTINGS).is_file()
    if folder is None or not (adapter or (folder / CONFIG).is_file()):
        folder = find_folder(HuggingFaceModel(path=source))
    base = folder
    if adapter:
        settings = read_json(folder / SETTINGS)
        base = find_folder(
            HuggingFaceModel(path=settings["base_model_name_or_path"], revision=settings.get("revision"))
        )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{base} could not be loaded as a language model: {error}", "give another folder") from error
    if adapter:
        model = with_folder(model, folder)
    tokenizer = load_tokenizer(str(folder if has_tokenizer(folder) else base))
    found = own_template(folder) or own_template(base)
    template = None if raw or found is None else Template(found, tokenizer)
    return speaker_of(model, tokenizer, template, model.generation_config.to_diff_dict(), str(source))


def speaker_of(
    model: nn.Module, tokenizer: Tokenizer, template: Template | None, settings: dict[str, Any], about: str
) -> Speaker:
    """With the ids that end an answer."""
    ends = answer_ends(ids_of(settings.get("eos_token_id")), tokenizer, template)
    settings = {**settings, "eos_token_id": ends, "pad_token_id": int(tokenizer.pad_id)}
    return Speaker(model, tokenizer, template, settings, tuple(ends), about)
