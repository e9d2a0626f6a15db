// How near predictions came to measurements, board by board: the studies' own figures
// (accuracy.json, written by `python -m studies accuracy`).

import { packaged } from "./api.js";
import { barTable, logarithmic, share, table } from "./cards.js";
import { amount, byId, cells, colour, el, names, numbers, plain, show, svg } from "./dom.js";
import { telling } from "./forms.js";
import { diagonal, draw } from "./plot.js";
import { whenOpened } from "./tabs.js";

/** Ends of the axis of ratios, predicted over measured, and its marks. */
const ENDS = { power: [0.4, 2.5], time: [0.1, 10] };
const MARKS = { power: [0.5, 0.67, 1, 1.5, 2], time: [0.1, 0.3, 1, 3, 10] };
const SHAPES = ["circle", "square", "diamond", "cross", "triangle-up", "star", "x", "hexagon"];
const COLOURS = ["bar", "bar-up", "bar-down", "accent", "warn", "good", "bad", "control"];

let data = null;

const quantity = () => byId("accuracy-quantity").value;

async function load() {
  data ??= await packaged("accuracy");
  showAll();
}

function showAll() {
  const chosen = data.boards.filter((one) => one.quantity === quantity());
  for (const one of document.querySelectorAll("[data-accuracy]")) one.hidden = one.dataset.accuracy !== quantity();
  byId("accuracy-near").textContent = data.near_factor;
  byId("accuracy-key").hidden = byId("accuracy-rests").hidden = false;
  byId("accuracy-splits").textContent = Object.values(data.splits).join("; ");
  byId("accuracy-licence").textContent = data.boards.find((one) => one.gpu === "gtx-titan-x").licence;
  show(byId("accuracy-boards"), boardTable(chosen));
  showPoints(chosen.filter((one) => one.points));
  byId("accuracy-notice").textContent = data.notice;
}

const axis = () => logarithmic(...ENDS[quantity()]);

/** A thin line over 90 %, a bar over the half in the middle, a mark at the median; baseline below. */
function spanBar(ours, base) {
  const at = axis();
  const near = [1 / data.near_factor, data.near_factor].map(at);
  const line = (y, [least, low, middle, high, most], names) => [
    svg("line", { class: names[0], x1: share(at(least)), x2: share(at(most)), y1: y, y2: y }),
    svg("rect", { class: names[1], x: share(at(low)), width: share(at(high) - at(low)), y: `${parseFloat(y) - 13}%`, height: "26%", rx: 2 }),
    svg("rect", { class: "mark", x: share(at(middle)), y: `${parseFloat(y) - 18}%`, height: "36%", width: 3, rx: 1 }),
  ];
  return svg("svg", { class: "bar", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "near", x: share(near[0]), width: share(near[1] - near[0]), y: 0, height: "100%" }),
    svg("line", { class: "rule", x1: share(at(1)), x2: share(at(1)), y1: 0, y2: "100%" }),
    line(base ? "30%" : "50%", ours, ["whisker", "range"]),
    base ? line("72%", base, ["base", "base-range"]) : null);
}

function scaleRow() {
  const at = axis();
  return el("tr", { class: "scale", "aria-hidden": "true" }, el("td"),
    el("td", { class: "pic" }, svg("svg", { class: "scale-marks" }, MARKS[quantity()].map((mark) =>
      svg("text", { x: share(at(mark)), y: "80%" }, `${mark}x`)))), [1, 2, 3].map(() => el("td")));
}

function boardTable(chosen) {
  const titles = ["Board", "Figure", "Median error", `Within ${data.near_factor}x`, "Inside 90 %"];
  const rows = chosen.flatMap((board) => Object.entries(board.splits).map(([split, one]) => boardRow(board, split, one, titles)));
  return barTable(`Ratio of predicted to measured ${quantity()} by board`, titles, [scaleRow(), rows],
    { kind: "boards", told: `Ratio at ${shares()}` });
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
  const points = boards.flatMap((board) => board.points.map(([name, measured, predicted]) =>
    ({ board: board.name, name, measured, predicted })));
  const values = points.flatMap((one) => [one.measured, one.predicted]);
  const ends = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  // Times span six powers of ten, powers not one.
  const scale = word === "time" ? { type: "log", range: ends.map(Math.log10), dtick: 1 } : { range: ends };
  draw(byId("accuracy-points"), () => {
    const line = (factor, dash) => diagonal(ends, { dash }, factor);
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
    ...names({ Kernel: "name" }), ...cells({ Board: "board" }),
    amount(`Measured, ${unit}`, (one) => one.measured, (value) => plain(value, 4)),
    amount(`Predicted, ${unit}`, (one) => one.predicted, (value) => plain(value, 4)),
    ...numbers({ Ratio: (one) => plain(one.predicted / one.measured) }),
  ], points));
}

export function start() {
  byId("accuracy-quantity").addEventListener("change", () => data && showAll());
  whenOpened("accuracy", () => telling("accuracy", load));
}
