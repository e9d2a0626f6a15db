// Why a prediction is what it is: SHAP or LIME as a waterfall, and the energy by component.

import { get } from "./api.js";
import { bar, barRow, barTable, linear, part } from "./cards.js";
import { byId, colour, el, percent, plain, quantity, show, unitFor } from "./dom.js";
import { drawSeen } from "./plot.js";

const MOST_PARTS = 12;

/** Ask for the explanation that the form above it names; `null` where there is nothing to explain. */
export function asked(id, signal) {
  const query = new URLSearchParams({
    prediction_id: id, method: byId("explain-method").value,
    target: byId("explain-target").value, format: "json",
  });
  return get(`/explain?${query}`, signal);
}

/** Show an explanation, or why there is none. */
export function showWhy(found) {
  show(byId("explanation"), !found ? el("p", { class: "hint" }, "Nothing to explain.")
    : found instanceof Error ? el("p", { class: "error" }, found.message) : waterfall(found));
}

/** From the base to the prediction, a step for each part; a table, so that it reads as one too. */
function waterfall(found) {
  const isPower = found.target === "power";
  const [unit, word] = isPower ? ["W", "watts"] : ["s", "seconds"];
  const isShap = found.method === "shap";
  const start = found[isShap ? `base_${word}` : `intercept_${word}`];
  const end = found[isShap ? `prediction_${word}` : `local_prediction_${word}`];
  const parts = found.contributions.filter((one) => one[word] !== 0);
  const first = parts.slice(0, MOST_PARTS);
  const others = parts.slice(MOST_PARTS);
  const rows = [
    { name: isShap ? "Base" : "Intercept", amount: start, isTotal: true },
    ...first.map((one) => ({
      name: one.condition ?? (isPower && one.value !== null ? `${one.feature} = ${plain(one.value, 4)}` : one.feature),
      amount: one[word], meaning: one.meaning,
    })),
    ...(others.length ? [{ name: `${others.length} others`, amount: others.reduce((sum, one) => sum + one[word], 0) }] : []),
    { name: isShap ? "Prediction" : "Linear model", amount: end, isTotal: true },
  ];
  let reached = 0;
  for (const row of rows) {
    row.from = row.isTotal ? 0 : reached;
    reached = row.to = row.from + row.amount;
  }
  const values = rows.flatMap((row) => [row.from, row.to]);
  const at = linear(Math.min(...values), Math.max(...values));
  return el("div", { id: "waterfall" },
    el("p", { class: "hint" }, isShap
      ? `Exact SHAP values of the ${found.model.family} model: base and parts sum to the prediction.`
      : `LIME on the ${found.model.family} model: a local linear model, R² ${plain(found.r_squared)}; `
        + "an approximation."),
    barTable(isPower ? "What makes the power" : "What makes the time", ["Part", "Figure", "Amount", "Share"],
      rows.map(({ name, meaning, amount, from, to, isTotal }) => barRow(isTotal ? "total" : null,
        el("th", { scope: "row", role: "rowheader", class: "wrap" }, name, meaning ? el("span", { class: "meaning" }, meaning) : null),
        [bar(at(from), at(to), isTotal ? "plain" : amount > 0 ? "up" : "down"), quantity(amount, unit, { sign: !isTotal }),
          end ? percent(amount / end) : ""]))));
}

/**
 * Energy by component, where the explanation does not say it: a boosted model knows no components,
 * the physical model that shares its answer out does.
 */
export function showComponents(answer, found) {
  const box = byId("components");
  if (answer.components || !found) return show(box);
  const sums = {};
  for (const row of found.blocks.rows)
    for (const [name, value] of Object.entries(row.components)) sums[name] = (sums[name] ?? 0) + value;
  sums["starting blocks"] = found.start.joules;
  const rows = Object.entries(sums).sort((a, b) => b[1] - a[1]).filter(([, value]) => value !== 0);
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)));
  show(box,
    el("p", { class: "hint" }, `The ${answer.model?.family ?? ""} model knows no components; the physical `
      + "model shares its energy out so."),
    barTable(`Energy by component, ${quantity(found.joules, "J")}`, ["Component", "Figure", "Amount", "Share"],
      rows.map(([name, value]) => barRow(null, el("th", { scope: "row", role: "rowheader" }, name),
        [bar(0, Math.abs(value) / most), quantity(value, "J"), percent(value / found.joules)]))));
}

// How near a launch comes to what the hardware can do: bars of each unit's peak, and the roofline.

const MEASURES = { "byte/s": "B/s", "flop/s": "FLOP/s", "operation/s": "op/s", "instruction/s": "inst/s" };
/** How far the roofs are drawn beyond what is known, in intensity. */
const BEYOND = 4;

/** Show the speed of light of an answer in its panel, which is hidden where the answer tells none. */
export function showSpeed({ speed_of_light: found }) {
  byId("speed").hidden = !found;
  if (!found) return;
  const { points, dram_peak: memory } = found.roofline;
  const used = found.units.filter((one) => one.share > 0);
  const idle = found.units.filter((one) => !one.share).map((one) => one.name);
  show(byId("speed-units"),
    found.bound ? el("p", {}, "Bound by ", el("b", { id: "speed-bound" }, found.bound), ".") : null,
    barTable("Share of each unit's peak over the predicted time", ["Unit", "Figure", "Share", "Achieved of peak"],
      used.map((one) => unitRow(one, Math.max(...used.map((each) => each.share))))),
    idle.length ? el("p", { class: "hint" }, `Idle: ${idle.join(", ")}.`) : null);
  byId("roofline-box").hidden = !points.length;
  show(byId("roofline-said"), points.map((one) => el("p", { class: "hint" }, sentence(one, memory))));
  if (points.length) drawSeen(byId("roofline"), () => roofline(points, memory));
}

function unitRow(one, most) {
  const [factor, unit] = unitFor([one.peak], MEASURES[one.measure]);
  const name = el("th", { scope: "row", role: "rowheader" }, one.name);
  return barRow(null, name, [part(one.share, one.share === most ? "up" : "plain"), percent(one.share),
    `${plain(one.achieved / factor)} of ${plain(one.peak / factor)} ${unit}`]);
}

const unitOf = (point) => (point.precision === "int" ? "op" : "FLOP");
const named = (point) => (point.precision === "tensor" ? "Tensor" : point.precision.toUpperCase());

/** What the picture shows of a point, for all who cannot see it. */
function sentence(point, memory) {
  const unit = unitOf(point);
  const achieved = quantity(point.achieved, `${unit}/s`);
  const roof = point.intensity === null ? point.peak : Math.min(point.peak, point.intensity * memory);
  const reached = `${achieved}, ${percent(point.achieved / roof)} of the roof above (${quantity(roof, `${unit}/s`)})`;
  if (point.intensity === null) return `${named(point)}: no device memory is moved; ${reached}.`;
  const side = point.intensity * memory < point.peak ? "memory" : "compute";
  return `${named(point)}: ${plain(point.intensity)} ${unit} for each byte of device memory, under the ${side} roof; ${reached}.`;
}

/** Operations a second against operations for each byte, both logarithmic, with the roofs. */
function roofline(points, memory) {
  const known = points.flatMap((one) => [one.peak / memory, ...(one.intensity ? [one.intensity] : [])]);
  const [least, most] = [Math.min(...known) / BEYOND, Math.max(...known) * BEYOND];
  const unit = unitOf(points[0]);
  const trace = (one, at, given) => ({ type: "scatter", line: { color: colour(`link-${at}`) }, hoverinfo: "x+y+name", ...given });
  return {
    title: `Roofline; ${points.map((one) => sentence(one, memory)).join(" ")}`,
    data: points.flatMap((one, at) => [
      trace(one, at, { mode: "lines", name: `${named(one)} roof, ${quantity(one.peak, `${unitOf(one)}/s`)}`,
        x: [least, one.peak / memory, most], y: [least * memory, one.peak, one.peak] }),
      trace(one, at, { mode: "markers", name: named(one), x: [one.intensity ?? most], y: [one.achieved], marker: { size: 11 } })]),
    layout: {
      xaxis: { type: "log", title: { text: `${unit} for each byte of device memory, ${quantity(memory, "B/s")}` } },
      yaxis: { type: "log", title: { text: `${unit}/s` }, exponentformat: "SI" },
    },
  };
}
