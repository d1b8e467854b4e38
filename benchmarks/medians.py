"""Prints the median tokens/s of each contestant in a results.jsonl, and its ratio to the hand-written loop's."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
by_name: dict[str, list[int]] = {}
for row in rows:
    by_name.setdefault(row["peer"], []).append(row["tokens_per_s"])
medians = {name: statistics.median(values) for name, values in by_name.items()}
base = medians.get("raw torch DDP")
print(f"{rows[0]['gpus']} x {rows[0]['device']}, torch {rows[0]['torch']}; tokens/s")
for name, values in sorted(by_name.items(), key=lambda item: -medians[item[0]]):
    ratio = f"{medians[name] / base:6.4f} of raw torch DDP" if base else ""
    print(f"{name:28} median {medians[name]:>10,.0f}  {ratio}  runs {values}")
if {"drumline recipe", "decoder by hand"} <= medians.keys():
    print(f"drumline recipe / decoder by hand: {medians['drumline recipe'] / medians['decoder by hand']:.4f}")
