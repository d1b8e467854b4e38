from __future__ import annotations

import pytest

from drumline.hardware.xids import RECOVERY_TOLD, meaning


@pytest.mark.parametrize("code", [13, 31, 43, 45, 69, 137])
def test_an_error_of_the_program_does_not_blame_the_gpu(code: int) -> None:
    assert meaning(code).status == "ok"


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 136, 140, 143, 158, 171])
def test_an_error_that_needs_a_reset_or_more_is_a_failure(code: int) -> None:
    told = meaning(code)
    assert told.status == "fail"
    assert told.action and told.title and "XID catalogue" in told.source


@pytest.mark.parametrize("code", [8, 32, 40, 63, 92, 94, 121])
def test_an_error_that_the_gpu_survives_is_a_warning(code: int) -> None:
    assert meaning(code).status == "warn"


@pytest.mark.parametrize("code", [0, 1, 58, 173, 999])
def test_an_unknown_number_stays_unknown(code: int) -> None:
    told = meaning(code)
    assert told.title == "not in NVIDIA's catalogue"
    assert told.status == "warn"


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        (145, "RLW_REMAP Nonfatal XC1 i0 Link -1 (0x00000004 0x00000001 0x0 0x0 0x0 0x0 0x0)", "warn"),
        (145, "RLW_REMAP Fatal XC0 i0 Link -1 (0x00000004 0x00000040 0x0 0x0 0x0 0x0 0x0)", "fail"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004505c6 0x0 0x0 0x0 0x0 0x0 0x0)", "fail"),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 04 (0x004505c6 0x0 0x0 0x0 0x0 0x0 0x0)", "warn"),
        (149, "", "fail"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fail"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fail"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "warn"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "ok"),
        (154, "", "ok"),
        (154, "the driver's recovery action changed", "ok"),
        (79, "GPU recovery action changed to 0x0 (None)", "fail"),
    ],
)
def test_the_drivers_line_decides_where_the_number_leaves_it_open(code: int, text: str, status: str) -> None:
    assert meaning(code, text).status == status


def test_what_the_driver_keeps_in_mind_are_numbers_of_the_catalogue() -> None:
    assert [code for code in RECOVERY_TOLD if meaning(code).title == meaning(999).title] == []
