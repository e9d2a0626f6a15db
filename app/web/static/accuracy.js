// How near predictions came to measurements, board by board: the studies' own figures
// (accuracy.json, written by `python -m studies accuracy`).

import { linear } from "./charts.js";
import { byId, colour, el, plain, say, show, svg, table } from "./dom.js";
import { draw } from "./plot.js";
import { savesOfTable } from "./save.js";
import { whenOpened } from "./tabs.js";

/** Ends of the axis of ratios, predicted over measured, and its marks. */
const ENDS = { power: [0.4, 2.5], time: [0.1, 10] };
const MARKS = { power: [0.5, 0.67, 1, 1.5, 2], time: [0.1, 0.3, 1, 3, 10] };
const NOTES = {
  power: "Power of kernels that the model answering by default has not seen, beside the median power "
    + "that needs no model. Each line: 90 % of the rows, the half in the middle, the median. What leaves the "
    + "figure goes on; the file has the numbers.",
  time: "Times of public programs and of well-known kernels with published figures, beside the median "
    + "time of the board's other kernels. No kernel was fitted; four norms and one share of the model "
    + "were chosen with the public programs in sight, one rule by three published figures.",
};
const POINTS = {
  power: "GeForce GTX Titan X at its reference clocks, each program left out: the one board whose "
    + "measurements carry a licence.",
  time: "Published figures of well-known kernels (docs/catalogue.md).",
};
const SHAPES = ["circle", "square", "diamond", "cross", "triangle-up", "star", "x", "hexagon"];
const COLOURS = ["bar", "bar-up", "bar-down", "accent", "warn", "good", "bad", "control"];

let data = null;

const quantity = () => byId("accuracy-quantity").value;

async function load() {
  if (data) return showAll();
  try {
    const answer = await fetch(new URL("accuracy.json", import.meta.url));
    if (!answer.ok) throw new Error(`The figures cannot be loaded (${answer.status}).`);
    data = await answer.json();
    showAll();
  } catch (error) {
    say(byId("accuracy-error"), error.message);
  }
  return undefined;
}

function showAll() {
  const chosen = data.boards.filter((one) => one.quantity === quantity());
  byId("accuracy-note").textContent = NOTES[quantity()];
  show(byId("accuracy-boards"), key(), boardTable(chosen));
  showPoints(chosen.filter((one) => one.points));
  show(byId("accuracy-rests"),
    el("li", {}, "Left out: ", Object.values(data.splits).join("; "), ". Where the kernel was seen, errors "
      + "are what most publications print; where it was not, they are what you get."),
    el("li", {}, "Inside 90 %: how many measurements the predicted 90 % interval held. A dash: not measured."),
    el("li", {}, "Of measurements without a licence only quantiles of the ratio over all rows of a board are "
      + "part of Wattcast. ", data.boards.find((one) => one.gpu === "gtx-titan-x").licence, "."));
  byId("accuracy-notice").textContent = data.notice;
}

const clamp = (share) => `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;

function axis() {
  const [low, high] = ENDS[quantity()].map(Math.log);
  const at = linear(low, high);
  return (ratio) => at(Math.log(ratio));
}

/** A thin line over 90 %, a bar over the half in the middle, a mark at the median; baseline below. */
function spanBar(ours, base) {
  const at = axis();
  const near = [1 / data.near_factor, data.near_factor].map(at);
  const line = (y, [least, low, middle, high, most], names) => [
    svg("line", { class: names[0], x1: clamp(at(least)), x2: clamp(at(most)), y1: y, y2: y }),
    svg("rect", { class: names[1], x: clamp(at(low)), width: clamp(at(high) - at(low)), y: `${parseFloat(y) - 13}%`, height: "26%", rx: 2 }),
    svg("rect", { class: "mark", x: clamp(at(middle)), y: `${parseFloat(y) - 18}%`, height: "36%", width: 3, rx: 1 }),
  ];
  return svg("svg", { class: "bar", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "near", x: clamp(near[0]), width: clamp(near[1] - near[0]), y: 0, height: "100%" }),
    svg("line", { class: "rule", x1: clamp(at(1)), x2: clamp(at(1)), y1: 0, y2: "100%" }),
    line(base ? "30%" : "50%", ours, ["whisker", "range"]),
    base ? line("72%", base, ["base", "base-range"]) : null);
}

function key() {
  const one = (names) => svg("svg", { class: "bar", "aria-hidden": "true" },
    svg("line", { class: names[0], x1: "0%", x2: "100%", y1: "50%", y2: "50%" }),
    svg("rect", { class: names[1], x: "25%", width: "50%", y: "30%", height: "40%" }));
  return el("p", { class: "key" },
    el("span", {}, one(["whisker", "range"]), "Wattcast"),
    el("span", {}, one(["base", "base-range"]), "no information"),
    el("span", {}, svg("svg", { class: "bar", "aria-hidden": "true" },
      svg("rect", { class: "near", x: 0, width: "100%", y: 0, height: "100%" })), `within ${data.near_factor}x`));
}

function scaleRow() {
  const at = axis();
  return el("tr", { class: "scale", "aria-hidden": "true" }, el("td"),
    el("td", { class: "pic" }, svg("svg", { class: "scale-marks" }, MARKS[quantity()].map((mark) =>
      svg("text", { x: clamp(at(mark)), y: "80%" }, `${mark}x`)))), [1, 2, 3].map(() => el("td")));
}

function boardTable(chosen) {
  const caption = `Ratio of predicted to measured ${quantity()} by board`;
  const titles = ["Board", "Figure", "Median error", `Within ${data.near_factor}x`, "Inside 90 %"];
  const rows = chosen.flatMap((board) => Object.entries(board.splits).map(([split, one]) => boardRow(board, split, one, titles)));
  const made = el("table", { class: "boards", role: "table" },
    el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, titles.map((title, i) =>
      el("th", { scope: "col", role: "columnheader", class: i === 1 ? "pic" : i > 1 ? "num" : null,
        "data-value": i === 1 ? `Ratio at ${shares()}` : null }, title === "Figure" ? el("span", { class: "visually-hidden" }, title) : title)))),
    el("tbody", { role: "rowgroup" }, scaleRow(), rows));
  return el("div", {}, made, savesOfTable(made, caption));
}

const shares = () => `${data.quantiles.map((q) => 100 * q).join(", ")} % of the rows`;

function boardRow(board, split, one, titles) {
  const base = one.baseline;
  const number = (at, text, beside) => el("td", { class: "num", role: "cell", "data-title": titles[at] }, text,
    beside === undefined ? null : el("span", { class: "hint range-text", "data-title": "no information" }, beside));
  const percent = (value) => (value === null || value === undefined ? "–" : `${plain(value)} %`);
  return el("tr", { role: "row" },
    el("th", { scope: "row", role: "rowheader", "data-value": `${board.name}, ${data.splits[split]}, ${board.against}` }, board.name, el("span", { class: "meaning" },
      `${data.splits[split]} · ${one.kernels} ${split === "gpus" ? "kinds of GPU" : one.kernels === 1 ? "kernel" : "kernels"}, ${one.rows} rows · ${board.against}`)),
    el("td", { class: "pic", role: "cell", "data-value": one.quantiles.join(" ") }, spanBar(one.quantiles, base?.quantiles),
      el("span", { class: "visually-hidden" }, `${one.quantiles.map((q) => plain(q)).join(", ")} at ${shares()}`)),
    number(2, percent(one.median_error_percent), base ? `${percent(base.median_error_percent)} without` : "–"),
    number(3, percent(one.near_percent), base ? `${percent(base.near_percent)} without` : "–"),
    number(4, percent(one.coverage_percent)));
}

function showPoints(boards) {
  byId("accuracy-points-panel").hidden = !boards.length;
  if (!boards.length) return;
  const [word, { unit }] = [quantity(), boards[0]];
  byId("accuracy-points-note").textContent = POINTS[word];
  const points = boards.flatMap((board) => board.points.map(([name, measured, predicted]) =>
    ({ board: board.name, name, measured, predicted })));
  const values = points.flatMap((one) => [one.measured, one.predicted]);
  const ends = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  // Times span six powers of ten, powers not one.
  const scale = word === "time" ? { type: "log", range: ends.map(Math.log10), dtick: 1 } : { range: ends };
  draw(byId("accuracy-points"), () => {
    const line = (factor, dash) => ({
      type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false,
      x: ends, y: ends.map((end) => end * factor), line: { color: colour("control"), width: 1, dash },
    });
    return {
      title: `Predicted against measured ${word}; the table of all points says the same`,
      data: [line(1, "solid"), line(data.near_factor, "dot"), line(1 / data.near_factor, "dot"),
        ...boards.map((board, at) => ({
          type: "scatter", mode: "markers", name: board.name,
          x: board.points.map((one) => one[1]), y: board.points.map((one) => one[2]),
          text: board.points.map((one) => one[0]),
          hovertemplate: `%{text}<br>measured %{x} ${unit}<br>predicted %{y} ${unit}<extra></extra>`,
          marker: { color: colour(COLOURS[at % 8]), symbol: SHAPES[at % 8], size: 8, opacity: 0.85 },
        }))],
      layout: {
        height: 560, showlegend: boards.length > 1,
        legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
        xaxis: { ...scale, title: { text: `Measured, ${unit}` } },
        yaxis: { ...scale, title: { text: `Predicted, ${unit}` } },
      },
    };
  });
  show(byId("accuracy-table"), table(`${points.length} points, predicted over measured`, [
    { title: "Kernel", head: true, class: "wrap", of: (one) => one.name },
    { title: "Board", of: (one) => one.board },
    { title: `Measured, ${unit}`, num: true, of: (one) => plain(one.measured, 4), value: (one) => one.measured },
    { title: `Predicted, ${unit}`, num: true, of: (one) => plain(one.predicted, 4), value: (one) => one.predicted },
    { title: "Ratio", num: true, of: (one) => plain(one.predicted / one.measured) },
  ], points));
}

export function start() {
  byId("accuracy-quantity").addEventListener("change", () => data && showAll());
  whenOpened("accuracy", () => {
    load();
    dispatchEvent(new Event("resize"));
  });
}
