"""Text to token ids and back: UTF-8 bytes, or a tokenizer from a local Hugging Face folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drumline.config.recipes import expand_path
from drumline.data.files import nearest
from drumline.errors import DataError, MissingExtra

Ids = NDArray[np.int64]

END_OF_TEXT = "<|endoftext|>"
BYTE_END_OF_DOCUMENT = 256

# Names under which byte-level vocabulary and merges are saved: by Hugging Face, and by OpenAI for GPT-2.
_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_PROBE = "The 2 naïve cafés cost 10 €,\n\tsaid Ωμέγα 日本 🙂.  It's so!"


class Tokenizer(Protocol):
    """What turns text into ids; `fingerprint` is a hash of everything that decides which ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_document(self) -> int:
        """The id written after each document."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256: equal for tokenizers that give equal ids."""

    def encode(self, text: str) -> Ids:
        """Give the ids of one text, int64 [tokens], nothing added at either end."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the ids of each text, as `encode` does."""

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; special ids and those that stand for nothing are left out."""


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, and 256 after each document."""

    vocab_size = 257
    end_of_document = BYTE_END_OF_DOCUMENT
    fingerprint = hashlib.sha256(b"drumline: UTF-8 bytes, end of document 256").hexdigest()

    def encode(self, text: str) -> Ids:
        """Give the bytes of one text, int64 [bytes]."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the bytes of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; bytes that are not UTF-8 become U+FFFD, ids above 255 are left out."""
        return bytes(int(i) for i in ids if i < BYTE_END_OF_DOCUMENT).decode(errors="replace")


class HuggingFaceTokenizer:
    """A tokenizer from a local folder: tokenizer.json, or byte-level vocab.json and merges.txt (GPT-2's own names too).

    Special tokens that stand in the text are taken as such. Truncation and padding that a tokenizer.json asks for are
    switched off: a document is never cut. Raises MissingExtra without the package `tokenizers`, DataError where the
    folder holds no tokenizer, one that does not give text back, or one without an end-of-document token.
    """

    def __init__(self, folder: Path) -> None:
        files = _tokenizer_files(folder)
        self.folder = folder
        self._tokenizer = _load(folder, files)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        _check(self._tokenizer, folder, byte_level=len(files) == 2)
        self.vocab_size = max(vocabulary.values()) + 1
        self.end_of_document = vocabulary[_end_of_document(folder, vocabulary)]
        parts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        self.fingerprint = hashlib.sha256(" ".join([*parts, str(self.end_of_document)]).encode()).hexdigest()

    def encode(self, text: str) -> Ids:
        """Give the ids of one text, int64 [tokens], without the special tokens of a model's template."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the ids of each text, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; special ids and those that stand for nothing are left out."""
        text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
        return text


def load_tokenizer(name: str) -> Tokenizer:
    """Give the tokenizer that `data.tokenizer` names: 'byte', or a folder. Raises DataError for anything else."""
    if name == "byte":
        return ByteTokenizer()
    folder = Path(expand_path(name)).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"data.tokenizer: {name!r} is neither 'byte' nor a folder",
            f"write byte, or a folder with tokenizer.json or vocab.json and merges.txt ({nearest(folder)})",
        )
    return HuggingFaceTokenizer(folder)


def _tokenizer_files(folder: Path) -> list[Path]:
    whole = folder / "tokenizer.json"
    if whole.is_file():
        return [whole]
    for names in _PAIRS:
        pair = [folder / name for name in names]
        if all(file.is_file() for file in pair):
            return pair
    raise DataError(
        f"{folder} holds no tokenizer: neither tokenizer.json nor {' nor '.join(' with '.join(p) for p in _PAIRS)}",
        f"name the folder that holds one ({nearest(whole)})",
    )


def _load(folder: Path, files: list[Path]) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("tokenizers", "hf") from None
    try:
        if len(files) == 1:
            tokenizer = tokenizers.Tokenizer.from_file(str(files[0]))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(files[0]), str(files[1])))
    # The package raises a plain Exception for whatever is wrong with a file.
    except Exception as error:
        names = " and ".join(file.name for file in files)
        raise DataError(
            f"cannot load {names} in {folder}: {error}", "fetch the files again, or save them again"
        ) from error
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if tokenizer.token_to_id(END_OF_TEXT) is not None:
        tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _check(tokenizer: Any, folder: Path, byte_level: bool) -> None:
    """A wrong load gives a vocabulary of one token, or drops characters, without a word: look before training on it."""
    ordinary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    fix = "save the tokenizer again with save_pretrained(), which writes tokenizer.json"
    if len(ordinary) < (256 if byte_level else 2):
        raise DataError(f"the tokenizer in {folder} has a vocabulary of only {len(ordinary)} tokens", fix)
    # Byte-level text must come back to the letter. Others change case and spacing, or know only the letters of
    # proteins: they are asked for tokens of their own.
    letters = sorted(token for token in ordinary if token.isascii() and token.isalpha())
    probes = [_PROBE] if byte_level else letters[:: max(1, len(letters) // 8)]
    for probe in probes:
        ids = tokenizer.encode(probe, add_special_tokens=False).ids
        back = tokenizer.decode(ids, skip_special_tokens=False)
        same = back == probe if byte_level else _bare(back) == _bare(probe)
        if not same:
            raise DataError(f"the tokenizer in {folder} does not give text back: {probe!r} becomes {back!r}", fix)


def _bare(text: str) -> str:
    return "".join(text.split()).casefold()


def _end_of_document(folder: Path, vocabulary: dict[str, int]) -> str:
    """<|endoftext|> where the vocabulary has it, else the eos_token of tokenizer_config.json."""
    if END_OF_TEXT in vocabulary:
        return END_OF_TEXT
    settings = folder / "tokenizer_config.json"
    try:
        token = json.loads(settings.read_text(encoding="utf-8"))["eos_token"]
        name = token["content"] if isinstance(token, dict) else token
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if name not in vocabulary:
        raise DataError(
            f"the tokenizer in {folder} has no end-of-document token: no {END_OF_TEXT}, and eos_token is {name!r}",
            f'name one of its tokens in {settings}: {{"eos_token": "..."}}',
        )
    return str(name)
