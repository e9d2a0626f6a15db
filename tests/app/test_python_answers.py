"""Answers of the Python functions: cards in a notebook, tables, pictures, and further questions."""

from __future__ import annotations

import pickle
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wattcast
from tests.needs import needs_nvrtc
from wattcast.features.errors import MissingExtraError, RequestError, ServiceError
from wattcast.models.intervals import quantity
from wattcast.predictor import reports
from wattcast.predictor.messages import WarningLine
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.reports import (
    Code,
    Column,
    Folded,
    Line,
    Shares,
    Table,
    Title,
    Warnings,
    html,
)

DEMO = "app/demo/vector_add.ptx"
LAUNCH: dict[str, Any] = {"gpu": "v100", "grid": 4096, "block": 256, "registry": False}
COUNT = {"3": 1 << 20}
SELF_CLOSING = {"rect", "br", "hr"}


class _Markup(HTMLParser):
    """Text of a page, and whether all that opens is closed and nothing is loaded."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.open, self.tags = "", [], set[str]()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
        if tag not in SELF_CLOSING:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in SELF_CLOSING:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(answer: Any) -> str:
    """Text of a card, which must be whole HTML that runs and loads nothing."""
    markup = _Markup(answer._repr_html_())
    assert not markup.tags & {"script", "style", "link", "img", "iframe"}
    return markup.text


@pytest.fixture(scope="module")
def answer() -> Any:
    return wattcast.predict(DEMO, arguments=COUNT, **LAUNCH)


def test_a_prediction_shows_figures_intervals_trust_bound_and_the_hottest_line(answer: Any) -> None:
    text = shown(answer)
    for each in (answer.power, answer.time, answer.energy):
        assert reports.value_of(each) in text
    assert "vector_add" in text
    assert "at 1380/877 MHz" in text
    assert answer.trust.mark in text
    assert f"bound by {answer.time_model.bound}" in text
    assert "90%, unseen kernel" in text
    assert f"dram {quantity(answer.components['dram'], 'W')}" in text
    assert "% of the energy in line" in text
    assert "global.f32" in text
    for warning in answer.warnings[: html.CARD_WARNINGS]:
        assert warning.detail in text
    assert repr(answer) == "<Prediction of vector_add on tesla-v100: 126 W, 18.3 µs, 2.3 mJ>"


NASTY = "<script>alert(1)</script>"


def everything(text: str) -> reports.Report:
    """A report with ``text`` wherever one can be."""
    column = Column(text, lambda row: row)
    warning = WarningLine(code="x", detail=text, line=None, column=None, source_line=None)
    return [
        Title(text, text), Line(text), Table([column], [text], text),
        Shares(text, {text: 1.0}, "W"),
        Folded(text, [text]), Code(text, text), Warnings([warning]),
    ]  # fmt: skip


def test_what_comes_from_the_kernel_is_escaped() -> None:
    for page in (html.card(everything(NASTY)), html.page(NASTY, everything(NASTY), "")):
        assert "<script" not in page
        assert page.count("&lt;script") >= 11


@pytest.mark.parametrize(
    ("text", "kept"),
    [("=1", "'=1"), ("+1", "'+1"), ("-1", "'-1"), ("@1", "'@1"), ("x=1", "x=1"),
     *((f"{blank}=1", "' =1") for blank in "\t\r\n"), *((f"{blank}x", " x") for blank in "\t\r\n")],
)  # fmt: skip
def test_no_cell_of_a_table_is_a_formula(text: str, kept: str) -> None:
    written = reports.comma_separated(("name", "joules"), [{"name": text, "joules": -1.0}])
    assert written == f"name,joules\n{kept},-1.0\n"


def test_names_are_no_markup_of_a_pull_request() -> None:
    table = Table([Column("kernel", lambda row: reports.markdown_name(row))], ["a|b`<b>"])
    row = reports.markdown(table).splitlines()[-1]
    assert row == "| <code>a&#124;b&#96;&#60;b&#62;</code> |"


def test_a_report_is_printed_as_text(answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answer.show()
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "vector_add on tesla-v100"
    assert reports.value_of(answer.energy) in printed


def test_colours_are_seen_on_white_and_on_black() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in reports.PALETTE:
        of = luminance(colour)
        assert 1.05 / (of + 0.05) >= 3.0, colour
        assert (of + 0.05) / 0.05 >= 3.0, colour


def test_an_answer_is_still_the_services_message(answer: Any) -> None:
    assert isinstance(answer, PredictAnswer)
    assert set(answer.model_dump()) == set(PredictAnswer.model_fields)
    again = pickle.loads(pickle.dumps(answer))
    assert again.energy == answer.energy
    assert again.hotspots(1).joules == answer.energy.joules


def test_a_prediction_is_a_row_with_units(answer: Any) -> None:
    (row,) = answer.to_frame().to_dict("records")
    assert row["kernel"] == "vector_add"
    assert row["power_watts"] == answer.power.watts
    assert row["time_low_seconds"] == answer.time.low
    assert row["energy_high_joules"] == answer.energy.high
    assert row["energy_basis"] == "unseen_kernel"
    assert row["dram_watts"] == answer.components["dram"]
    assert row["trust"] == answer.trust.mark


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"arguments": {3: "x"}}, "launch.arguments.3: Input should be a valid integer"),
        ({"arguments": {3: [1, 2]}}, "launch.arguments.3: Input should be a valid integer"),
        ({"arguments": {"0": {"elemens": 5}}}, "launch.arguments.0.elemens: Extra inputs"),
        ({"grid": 4.5}, "launch.grid: Input should be a valid integer"),
        ({"loops": {"a": -1}}, "loops.a: Input should be greater than or equal to 0"),
    ],
)
def test_what_is_of_the_wrong_kind_is_told_in_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as told:
        wattcast.predict(DEMO, **{**LAUNCH, **given})
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)
    assert "pydantic" not in str(told.value)
    with pytest.raises(RequestError, match=r"operator.*m: "):
        wattcast.operator("gemm", m="wide", n=1, k=1, dtype="bf16", gpu="h100")


def test_numbers_of_numpy_are_numbers_in_what_describes_a_pointer_too() -> None:
    plain = wattcast.predict(DEMO, arguments={3: 4096, 0: {"elements": 4096}}, **LAUNCH)
    own: dict[Any, Any] = {np.int64(3): np.int32(4096), 0: {"elements": np.int64(4096)}}
    assert wattcast.predict(DEMO, arguments=own, **LAUNCH).energy == plain.energy


def test_hotspots_and_advice_are_those_of_the_answer(answer: Any) -> None:
    hot = answer.hotspots()
    assert hot.prediction_id == answer.id
    assert hot.joules == answer.energy.joules
    lines = hot.to_frame()
    assert lines["energy_share"].sum() + hot.start.energy_share == pytest.approx(1, rel=1e-6)
    assert len(hot.to_frame("blocks")) == len(hot.blocks.rows)
    assert "st.global.f32" in shown(hot)
    alone = wattcast.hotspots(DEMO, arguments=COUNT, **LAUNCH)
    assert alone.lines.rows == hot.lines.rows
    advice = answer.advise()
    assert advice.prediction_id == answer.id
    assert advice.before.joules == pytest.approx(answer.energy.joules)
    same = wattcast.advise(DEMO, arguments=COUNT, **LAUNCH)
    assert advice.to_frame().equals(same.to_frame())
    for one in advice.advice:
        assert one.remedy in shown(advice)
    assert all(one.remedy in " ".join(str(advice).split()) for one in advice.advice)
    assert "Advice(" not in str(advice)


def test_an_answer_from_measured_work_has_no_code_to_ask_about() -> None:
    work = {"dram_bytes": 1e9, "int_ops": 4e9, "flops_sp": 2e9}
    answer = wattcast.predict(work=work, **LAUNCH)
    assert "measured work" in shown(answer)
    for ask in (answer.hotspots, answer.advise):
        with pytest.raises(ServiceError, match="does not rest on code"):
            ask()


def test_several_gpus_are_a_table_in_the_order_asked() -> None:
    found = wattcast.compare(DEMO, gpus=["v100", "a100"], grid=64, block=256, registry=False)
    assert list(found.to_frame()["gpu"]) == ["tesla-v100", "a100-sxm4-80gb"]
    assert "a100-sxm4-80gb" in shown(found)
    assert found[1].hotspots(1).gpu == "a100-sxm4-80gb"


def test_code_is_compared_side_by_side() -> None:
    old = Path(DEMO).read_text()
    new = old.replace("add.f32", "mul.f32")
    found = wattcast.compare(old, new, gpus=["v100"], grid=64, block=256, registry=False)
    (row,) = found.to_frame().to_dict("records")
    assert row["old_energy_joules"] == found.comparisons[0].old.energy.joules
    assert row["energy_percent"] == found.comparisons[0].change.energy_percent
    assert "→" in shown(found)


def test_a_sweep_answers_as_the_service_and_is_a_table() -> None:
    found = wattcast.sweep(
        DEMO, blocks=[64, 128, (512,)], arguments=COUNT, constraints={"max_slowdown": 2.0}, **LAUNCH
    )
    table = found.to_frame()
    assert sorted(table["block"], key=int) == ["64", "128", "512"]
    assert set(table["time_seconds"]) == {point.time.seconds for point in found.points}
    text = shown(found)
    for name, best in found.best:  # what is below the model's resolution is not called better
        assert (f"{name.replace('_', ' ')}: tesla-v100" in text) != best.no_difference
    assert "blocks of 512" in text
    two = wattcast.sweep(DEMO, **{**LAUNCH, "gpu": ["v100", "p100"]}, blocks=[128])
    assert set(two.to_frame()["gpu"]) == {"tesla-v100", "tesla-p100"}


def test_clocks_are_swept_and_a_slowdown_is_kept_to() -> None:
    found = wattcast.dvfs(DEMO, arguments=COUNT, constraints={"max_slowdown": 1.05}, **LAUNCH)
    table = found.to_frame()
    assert len(table) == len(found.points) > 3
    assert table[table["feasible"]]["scale_time"].max() <= 1.05
    assert "1380/877" in shown(found)
    one = wattcast.dvfs(DEMO, clocks={"core_mhz": 945}, **LAUNCH)
    assert [point.core_mhz for point in one.points] == [945]


def test_gpus_are_listed_and_searched() -> None:
    everything = wattcast.gpus(registry=False)
    assert len(everything) > 100
    assert "tesla-v100" in everything.to_frame()["id"].tolist()
    assert f"and {len(everything) - html.CARD_ROWS} more" in shown(everything)
    found = wattcast.gpus("HOPPER nvl", registry=False)
    assert {one["id"] for one in found} == {"h100-nvl", "h200-nvl"}
    assert wattcast.gpus("no such", registry=False) == []


def test_many_launches_keep_their_places() -> None:
    launches = [{"grid": 64, "block": 256}, {"grid": 64, "block": 9999}, {"grid": 128, "block": 64}]
    found = wattcast.predict_many(DEMO, gpu="v100", launches=launches, registry=False)
    table = found.to_frame()
    assert table["problem"].notna().tolist() == [False, True, False]
    assert table["time_seconds"].isna().tolist() == [False, True, False]
    assert table["problem"][1] in shown(found)


def test_pictures_show_themselves(answer: Any) -> None:
    pytest.importorskip("matplotlib")
    figure = answer.plot()
    assert figure._repr_svg_().lstrip().startswith("<?xml")
    assert [axes.get_title() for axes in figure.axes] == ["power by component", "90% intervals"]
    swept = wattcast.sweep(DEMO, blocks=[64, 128, 256], arguments=COUNT, **LAUNCH)
    (axes,) = swept.plot().axes
    points = {(x, y) for x, y in axes.collections[0].get_offsets().tolist()}
    assert points == {(one.time.seconds, one.energy.joules) for one in swept.points}
    for one in (wattcast.dvfs(DEMO, **LAUNCH),
                wattcast.compare(DEMO, gpus=["v100", "p100"], grid=64, block=256)):  # fmt: skip
        assert one.plot()._repr_svg_()
    assert "matplotlib.pyplot" not in sys.modules or answer.plot().number is None


def test_a_missing_library_is_named_with_its_extra(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wattcast.predictor import plots

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pandas.*wattcast\[notebook\]"):
        answer.to_frame()
    plots._kind.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"matplotlib.*wattcast\[notebook\]"):
        answer.plot()
    assert "vector_add" in shown(answer)  # the card needs neither


@needs_nvrtc
def test_lines_of_cuda_source_are_shown_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(
        "__global__ void scale(float *data) {\n"
        "  int at = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  data[at] = 3.0f * data[at];  // <b>\n}\n"
    )
    answer = wattcast.predict(str(path), **LAUNCH)
    lines = answer.hotspots().to_frame("source_lines")
    assert lines["file"].tolist()[0] == "scale.cu"
    assert lines["text"].tolist()[0] == "data[at] = 3.0f * data[at];  // <b>"
    assert "source line 3" in shown(answer)
    assert "scale.cu:3  data[at] = 3.0f * data[at];  // <b>" in shown(answer.hotspots())


@needs_nvrtc
def test_macros_of_a_source_are_swept_and_become_columns() -> None:
    code = """
    __global__ void fill(float *out, int n) {
      int at = (blockIdx.x * blockDim.x + threadIdx.x) * PER;
      for (int i = 0; i < PER; ++i) if (at + i < n) out[at + i] = 1.0f;
    }
    """
    found = wattcast.sweep(
        code, gpu="v100", grid=1024, block=128, arguments={"n": 1 << 18}, registry=False,
        cuda=None, defines={"PER": [1, 2, "broken("]}, grid_formula=["ceil(n / (PER * 128))"],
        block_formula=["128"],
    )  # fmt: skip
    table = found.to_frame()
    assert dict(zip(table["PER"], table["grid"], strict=True)) == {1: "2048", 2: "1024"}
    assert "tesla-v100 PER=2: 1024 blocks of 128" in shown(found)
    assert "tesla-v100 PER=broken(: " in shown(found)
