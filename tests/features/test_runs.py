"""The dynamic analyses degrade openly: no text takes an answer down."""

from __future__ import annotations

import pytest

from wattcast.features.analysis import analyse
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.runs import Runs


def test_a_failing_analysis_is_an_error_that_names_it_and_prediction_goes_on(monkeypatch):
    def fails(*_args: object, **_options: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("wattcast.features.symbolic.analyse_symbolically", fails)
    loop = (
        ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u32 n)\n{\n"
        ".reg .pred %p<2>;\n.reg .b32 %r<3>;\nld.param.u32 %r1, [n];\nmov.u32 %r2, 0;\nL:\n"
        "add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, %r1;\n@%p1 bra L;\nret;\n}\n"
    )
    module, gpu = read_module(loop), load_gpu("tesla-v100")
    analysis = analyse(module, None, Launch.of(1, 32), gpu)
    assert [trip.how for trip in analysis.trip_counts] == ["assumed"]
    assert "analysis_failed" in {d.code for d in analysis.diagnostics}
    runs = Runs(module, module.kernel(), Launch.of(1, 32), gpu, {}, 1.0)
    with pytest.raises(AnalysisError, match="symbolic analysis") as caught:
        _ = runs.symbolic
    assert caught.value.context["analysis"] == "symbolic"
