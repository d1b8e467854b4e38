"""Case 15 on real GPUs: files whose tensors were saved on GPU 0 land on each rank's own. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import drumline
from tests.gpu.loading import begin_with
from tests.ranks.training import make_model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("parallel", [{"kind": "auto"}, {"kind": "ddp"}, {"kind": "fsdp", "min_params": 30}], ids=str)
def test_each_rank_loads_onto_its_own_gpu(tmp_path: Path, parallel: dict[str, Any]) -> None:
    model = make_model().cuda(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    model(torch.ones(2, 6, 4, dtype=torch.float64, device="cuda:0")).sum().backward()
    optimizer.step()
    path = tmp_path / "theirs.pt"
    torch.save({"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}, path)
    expected = {name: value.cpu() for name, value in model.state_dict().items()}
    momenta = [float(values["momentum_buffer"].sum()) for values in optimizer.state_dict()["state"].values()]
    answers = drumline.launch(begin_with, (str(tmp_path / "run"), str(path), parallel))
    for weights, _, elsewhere in answers:
        torch.testing.assert_close(weights, expected, rtol=0, atol=0)
        assert elsewhere == []
    torch.testing.assert_close(answers[0][1], momenta, rtol=0, atol=1e-12)
