"""What `drumline finetune` starts: looks at a model's config.json and at the first rows of the data; reads no weights.

What it prints are names, types and lengths, never a text.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from drumline.build.glance_rows import Rows, first_rows, within
from drumline.config.finetuning import DataSeen, ModelSeen
from drumline.config.finetuning_task import ColumnSeen, Family, TaskFound, choose_task
from drumline.config.model import HuggingFaceModel
from drumline.data.schema import SchemaCounter, renamed
from drumline.data.tokenizers import Tokenizer, load_tokenizer
from drumline.errors import ConfigError, DrumlineError
from drumline.launcher.processes import die_with_parent
from drumline.models.facts import reason
from drumline.models.hub import find_folder

TURN_TOKENS = 8
"""What a template adds to each message, about."""
SHOWN_CHARS = 200_000
"""Of running text, what the number of tokens is told from."""
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


def glance(ask: dict[str, Any]) -> dict[str, Any]:
    """What choose() of config/finetuning.py needs, as JSON. Raises what reading raises.

    ask: `model`, settings of a HuggingFaceModel; `data`, paths; and, where they are there, `eval`, paths, `task`, and
    `columns`, as data.columns.
    """
    model = HuggingFaceModel(**ask["model"])
    folder = find_folder(model, weights=False)
    seen = model_seen(model.path, folder)
    tokenizer = load_tokenizer(str(folder))
    rows = first_rows(ask["data"], ask.get("task"))
    if rows.kind == "text":
        found = TaskFound("language_modelling", (), "the files hold running text")
        if ask.get("task") not in (None, "language_modelling"):
            raise ConfigError(
                f"--task {ask['task']}, and the data is running text without labels",
                "name files of rows (.jsonl, .csv, .parquet), or a folder with one folder of texts a class",
            )
        if seen.family != "causal":
            raise ConfigError(
                f"the data is running text, and {model.path} does not write on",
                "take a model that does (...ForCausalLM), or rows with a label",
            )
        data = running_text(rows, tokenizer)
    else:
        found, data = rows_seen(rows, tokenizer, seen, ask)
    held_out = ask.get("eval") or []
    if rows.kind in ("text", "records"):
        held_out = [inner for path in held_out for inner in within(path, None)]
    return {"model": asdict(seen), "data": asdict(data), "found": asdict(found), "held_out": held_out}


def model_seen(path: str, folder: Path) -> ModelSeen:
    """What kind of model config.json describes, its size, and the longest row it takes."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = settings.get("text_config", settings)
    names = " ".join(settings.get("architectures") or ())
    # GPT-2's own class is GPT2LMHeadModel.
    causal = "CausalLM" in names or "LMHeadModel" in names or settings.get("is_decoder")
    family: Family = "causal" if causal else "encoder"
    if settings.get("is_encoder_decoder"):
        family = "encoder_decoder"
    longest = next((text[name] for name in ("max_position_embeddings", "n_positions", "n_ctx") if text.get(name)), None)
    if longest is not None and "Roberta" in names:
        longest -= 2  # it counts positions from the one after its padding id
    return ModelSeen(path, family, num_parameters(settings, folder), longest, has_template(folder))


def has_template(folder: Path) -> bool:
    """Whether a tokenizer comes with a chat template, in a file of its own or among its settings."""
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError):
        return False


def num_parameters(settings: dict[str, Any], folder: Path) -> int:
    """By the size of the weights where they are there, else by the shape of a transformer, to some percent."""
    width = _WIDTHS.get(str(settings.get("dtype") or settings.get("torch_dtype") or "float32"), 4)
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    if sizes:
        return sum(sizes) // width
    text = settings.get("text_config", settings)

    def first(*names: str, default: int = 0) -> int:
        return int(next((text[name] for name in names if text.get(name)), default))

    hidden = first("hidden_size", "n_embd", "d_model", "dim")
    layers = first("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    heads = first("num_attention_heads", "n_head", "num_heads", "n_heads", default=1)
    head = first("head_dim", default=hidden // max(1, heads))
    kept = first("num_key_value_heads", default=heads)
    inner = first("intermediate_size", "n_inner", "d_ff", "hidden_dim", default=4 * hidden)
    gated = 3 if text.get("hidden_act") in ("silu", "swish", "gelu_pytorch_tanh") else 2
    experts = first("num_local_experts", "num_experts", default=1)
    block = 2 * hidden * head * (heads + kept) + gated * hidden * inner * experts
    tables = 1 if text.get("tie_word_embeddings", settings.get("tie_word_embeddings", True)) else 2
    return layers * block * (2 if settings.get("is_encoder_decoder") else 1) + tables * hidden * first("vocab_size")


def rows_seen(rows: Rows, tokenizer: Tokenizer, model: ModelSeen, ask: dict[str, Any]) -> tuple[TaskFound, DataSeen]:
    """The task that the columns allow, and how long the rows are in its columns."""
    names = ask.get("columns") or {}
    records = [renamed(record, names) for record in rows.records]
    counter = SchemaCounter()
    for record in records:
        counter.add(record)
    columns = {
        name: ColumnSeen(
            tuple(kind for kind in column.types if kind != "null"),
            None if column.distinct is None else len(column.distinct),
        )
        for name, column in counter.columns().items()
    }
    found = choose_task(columns, model.family, ask.get("task"))
    if names:
        found = replace(found, columns={**found.columns, **names})
    lengths = sorted(token_counts(records, found.texts, tokenizer))
    mean = sum(lengths) / len(lengths)
    return found, DataSeen(
        rows.kind,
        tuple(rows.source),
        columns,
        rows.num_rows,
        lengths[len(lengths) // 2],
        lengths[-1],
        round(mean * rows.num_rows),
        len(records),
        rows.eval_split,
    )


def token_counts(records: Sequence[dict[str, Any]], names: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Tokens of each row in these columns, with what a template adds about."""
    texts, pieces = [], []
    for record in records:
        found = [text for name in names for text in strings_in(record.get(name))]
        texts.append("\n".join(found))
        pieces.append(max(1, len(found)))
    return [
        len(ids) + (TURN_TOKENS * count if count > 1 else 2)
        for ids, count in zip(tokenizer.encode_batch(texts), pieces, strict=True)
    ]


def strings_in(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("role", "from"):
                yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)


def running_text(rows: Rows, tokenizer: Tokenizer) -> DataSeen:
    """How many tokens files of running text have, about."""
    size = sum(Path(file).stat().st_size for file in rows.files)
    text = ""
    for file in rows.files:
        with Path(file).open(encoding="utf-8", errors="replace") as opened:
            text += opened.read(SHOWN_CHARS - len(text))
        if len(text) >= SHOWN_CHARS:
            break
    share = len(tokenizer.encode(text)) / max(1, len(text.encode()))
    return DataSeen("text", tuple(rows.source), {}, 0, 0, 0, round(size * share), 0)


def answer(asked: str) -> dict[str, Any]:
    """The facts, or {"problem": ..., "fix": ..., "code": ...} for what keeps them from being told."""
    try:
        return glance(json.loads(asked))
    except DrumlineError as error:
        return {"problem": error.problem, "fix": error.fix, "code": error.code}
    except Exception as error:
        return {"problem": reason(error), "fix": "see whether model and data are what they should be", "code": "data"}


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())  # whoever asks may be killed
    sys.stdout.write(f"\n{json.dumps(answer(sys.argv[1]))}\n")
