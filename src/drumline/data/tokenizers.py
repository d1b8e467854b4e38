"""Text to token ids and back: UTF-8 bytes, or a Hugging Face tokenizer from a folder or the hub."""

from __future__ import annotations

import bisect
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from drumline.data.files import nearest
from drumline.data.hub import TOKENIZER_FILES, Hub, fetch, local_folder
from drumline.errors import DataError, DrumlineError, MissingExtra

Ids = NDArray[np.int64]
Words = list[int | None]
"""For each id the number of the word that it belongs to; None for special ids and spaces."""

END_OF_TEXT = "<|endoftext|>"
BYTE_END_OF_DOCUMENT = 256

# Names under which byte-level vocabulary and merges are saved: by Hugging Face, and by OpenAI for GPT-2.
_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_OTHER = ("vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Vocabularies of WordPiece and of SentencePiece, which transformers knows to read by the model's kind."""
_PROBE = "The 2 naïve cafés cost 10 €,\n\tsaid Ωμέγα 日本 🙂.  It's so!"


class ModelRow(NamedTuple):
    """The ids of one text, or of two, as a model reads a whole row: with the special ids of its template, and cut."""

    ids: Ids
    type_ids: Ids
    """int64 [tokens]: 0 for the first text and its special ids, 1 for the second."""


class Tokenizer(Protocol):
    """What turns text into ids; `fingerprint` is a hash of everything that decides which ids."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def end_of_document(self) -> int:
        """The id written after each document. Raises DataError where there is none."""

    @property
    def pad_id(self) -> int:
        """The id that fills rows up; what it stands for must not matter, as an attention mask covers it."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256: equal for tokenizers that give equal ids."""

    def encode(self, text: str) -> Ids:
        """Give the ids of one text, int64 [tokens], nothing added at either end."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the ids of each text, as `encode` does."""

    def encode_row(self, text: str, pair: str | None, longest: int) -> ModelRow:
        """Give a model's row of at most `longest` ids; of two texts the longer one is cut first."""

    def encode_words(self, words: Sequence[str], longest: int) -> tuple[Ids, Words]:
        """Give a model's row of words, and which word each id belongs to."""

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; special ids and those that stand for nothing are left out."""


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, and 256 after each document."""

    vocab_size = 257
    end_of_document = BYTE_END_OF_DOCUMENT
    pad_id = BYTE_END_OF_DOCUMENT
    fingerprint = hashlib.sha256(b"drumline: UTF-8 bytes, end of document 256").hexdigest()

    def encode(self, text: str) -> Ids:
        """Give the bytes of one text, int64 [bytes]."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the bytes of each text."""
        return [self.encode(text) for text in texts]

    def encode_row(self, text: str, pair: str | None, longest: int) -> ModelRow:
        """Give the bytes of the text, cut to `longest`; a second text follows after 256."""
        first = self.encode(text)
        if pair is None:
            return ModelRow(first[:longest], np.zeros(min(len(first), longest), dtype=np.int64))
        second = self.encode(pair)
        keep, keep_pair = kept_of(len(first), len(second), longest - 1)
        ids = np.concatenate([first[:keep], [BYTE_END_OF_DOCUMENT], second[:keep_pair]])
        return ModelRow(ids, (np.arange(len(ids)) > keep).astype(np.int64))

    def encode_words(self, words: Sequence[str], longest: int) -> tuple[Ids, Words]:
        """Give the bytes of the words with a space between two."""
        ids: list[int] = []
        numbers: Words = []
        for number, word in enumerate(words):
            own = word.encode()
            ids += [ord(" "), *own] if number else own
            numbers += [None, *[number] * len(own)] if number else [number] * len(own)
        return np.array(ids[:longest], dtype=np.int64), numbers[:longest]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; bytes that are not UTF-8 become U+FFFD, ids above 255 are left out."""
        return bytes(int(i) for i in ids if i < BYTE_END_OF_DOCUMENT).decode(errors="replace")


class HuggingFaceTokenizer:
    """A tokenizer from a local folder: tokenizer.json, or byte-level vocab.json and merges.txt (GPT-2's own names too).

    Older folders have vocab.txt or a SentencePiece model, which transformers reads, the latter with the package
    sentencepiece. Special tokens that stand in the text are taken as such. Truncation and padding that a tokenizer.json
    asks for are switched off: a document is never cut. Raises MissingExtra without the package `tokenizers`, DataError
    where the folder holds no tokenizer, or one that does not give text back.
    """

    def __init__(self, folder: Path) -> None:
        files = _tokenizer_files(folder)
        self.folder = folder
        self._tokenizer, roles = _load(folder, files)
        vocabulary = self.vocabulary
        _check(self._tokenizer, folder, byte_level=_is_pair(files))
        self.vocab_size = max(vocabulary.values()) + 1
        end = END_OF_TEXT if END_OF_TEXT in vocabulary else roles["eos_token"]
        self._end_name, self._end = end, vocabulary.get(str(end))
        self.pad_id = _pad_id(roles["pad_token"], vocabulary, self._end)
        # What becomes of the other vocabularies is said by settings beside them, too.
        read = [self._tokenizer.to_str().encode()] if files[0].name in _OTHER else [file.read_bytes() for file in files]
        parts = [hashlib.sha256(content).hexdigest() for content in read]
        self.fingerprint = hashlib.sha256(" ".join([*parts, str(self._end)]).encode()).hexdigest()

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added ones too."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    @property
    def end_of_document(self) -> int:
        """<|endoftext|> where the vocabulary has it, else the eos_token of tokenizer_config.json, else DataError."""
        if self._end is None:
            settings = self.folder / "tokenizer_config.json"
            raise DataError(
                f"the tokenizer in {self.folder} has no end-of-document token: no {END_OF_TEXT}, and eos_token is "
                f"{self._end_name!r}",
                f'name one of its tokens in {settings}: {{"eos_token": "..."}}',
            )
        return self._end

    def encode(self, text: str) -> Ids:
        """Give the ids of one text, int64 [tokens], without the special tokens of a model's template."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Give the ids of each text, on all cores."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def encode_row(self, text: str, pair: str | None, longest: int) -> ModelRow:
        """Give the ids in the tokenizer's own template, such as [CLS] text [SEP] pair [SEP]."""
        first = self._tokenizer.encode(text, add_special_tokens=False)
        second = None if pair is None else self._tokenizer.encode(pair, add_special_tokens=False)
        row = self._finished(first, second, longest)
        return ModelRow(np.array(row.ids, dtype=np.int64), np.array(row.type_ids, dtype=np.int64))

    def encode_words(self, words: Sequence[str], longest: int) -> tuple[Ids, Words]:
        """Give the ids of the words with a space between two; an id is of the word that its last character is in."""
        # Not the package's own word numbers: byte-level vocabularies would then be used without their leading spaces.
        row = self._finished(self._tokenizer.encode(" ".join(words), add_special_tokens=False), None, longest)
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        numbers: Words = [None] * len(row.ids)
        for place, ((start, end), special) in enumerate(zip(row.offsets, row.special_tokens_mask, strict=True)):
            if end > start and not special:
                numbers[place] = bisect.bisect_right(starts, end - 1) - 1
        return np.array(row.ids, dtype=np.int64), numbers

    def _finished(self, first: Any, second: Any, longest: int) -> Any:
        room = max(0, longest - self._tokenizer.num_special_tokens_to_add(second is not None))
        keep, keep_second = kept_of(len(first), 0 if second is None else len(second), room)
        first.truncate(keep)
        if second is not None:
            second.truncate(keep_second)
        return self._tokenizer.post_process(first, second, add_special_tokens=True)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Give the text of some ids; special ids and those that stand for nothing are left out."""
        text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
        return text


def load_tokenizer(name: str, hub: Hub | None = None) -> Tokenizer:
    """Give the tokenizer that `data.tokenizer` names: 'byte', a folder, or a name on the hub, which `hub` gets at.

    Raises DataError or ConfigError where there is no such thing.
    """
    if name == "byte":
        return ByteTokenizer()
    folder = local_folder(name)
    if folder is None:
        folder = fetch(name, "data.tokenizer", TOKENIZER_FILES, hub or Hub())
    if not folder.is_dir():
        raise DataError(
            f"data.tokenizer: {name!r} is neither 'byte' nor a folder",
            f"write byte, a folder with a Hugging Face tokenizer, or a name on the hub ({nearest(folder)})",
        )
    return HuggingFaceTokenizer(folder)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer that can be read here."""
    return bool(_files_in(folder))


def extends(tokenizer: Tokenizer, own: Tokenizer) -> bool:
    """Whether each token of `own` has the same id in the other one: it is the same, or made of it by adding tokens."""
    if isinstance(tokenizer, HuggingFaceTokenizer) and isinstance(own, HuggingFaceTokenizer):
        return own.vocabulary.items() <= tokenizer.vocabulary.items()
    return tokenizer.fingerprint == own.fingerprint


def _files_in(folder: Path) -> list[Path]:
    """The files of the folder's vocabulary, of the first kind that is there; none where it has no tokenizer."""
    for names in (("tokenizer.json",), *_PAIRS, *((name,) for name in _OTHER)):
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return files
    return []


def _tokenizer_files(folder: Path) -> list[Path]:
    if files := _files_in(folder):
        return files
    others = [*(" with ".join(pair) for pair in _PAIRS), *_OTHER]
    raise DataError(
        f"{folder} holds no tokenizer: neither tokenizer.json nor {' nor '.join(others)}",
        f"name the folder that holds one ({nearest(folder / 'tokenizer.json')})",
    )


def _is_pair(files: list[Path]) -> bool:
    return tuple(file.name for file in files) in _PAIRS


def _load(folder: Path, files: list[Path]) -> tuple[Any, dict[str, str | None]]:
    """The tokenizer, and its tokens that end and fill up by their names in tokenizer_config.json."""
    roles = {role: _named_token(folder, role) for role in ("eos_token", "pad_token")}
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("tokenizers", "hf") from None
    try:
        if not _is_pair(files):
            if files[0].name in _OTHER:
                read = _read(folder, files[0])
                tokenizer, roles = read.backend_tokenizer, {role: getattr(read, role) for role in roles}
            else:
                tokenizer = tokenizers.Tokenizer.from_file(str(files[0]))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer, roles
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(files[0]), str(files[1])))
    except DrumlineError:
        raise
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
    return tokenizer, roles


def _read(folder: Path, file: Path) -> Any:
    """What transformers makes of a vocabulary, by the kind of model that config.json or tokenizer_config.json says."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("transformers", "hf") from None
    if file.suffix == ".model" and importlib.util.find_spec("sentencepiece") is None:
        raise DataError(
            f"{file.name} in {folder} is read with the package sentencepiece, which is not installed",
            "pip install sentencepiece, or save the tokenizer with save_pretrained() where it is: that writes "
            "tokenizer.json",
        )
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


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


def _named_token(folder: Path, role: str) -> str | None:
    """The token that tokenizer_config.json gives this role, such as eos_token; None where it names none."""
    try:
        token = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))[role]
        name = token["content"] if isinstance(token, dict) else token
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if name is None else str(name)


def _pad_id(named: str | None, vocabulary: dict[str, int], end: int | None) -> int:
    """The padding token that is named, else one of the two usual names, else the end token, else 0."""
    names = (named, "[PAD]", "<pad>")
    return next((vocabulary[name] for name in names if name in vocabulary), end or 0)


def kept_of(first: int, second: int, room: int) -> tuple[int, int]:
    """How many ids of two texts to keep, so that both fit: the shorter one whole while that leaves it the shorter."""
    keep_second = min(second, max(room // 2, room - first))
    return min(first, room - keep_second), keep_second
