// Why a prediction is what it is: SHAP or LIME as a waterfall, and the energy by component.

import { get } from "./api.js";
import { bar, barRow, barTable, linear, logarithmic, part } from "./cards.js";
import { byId, el, percent, plain, quantity, show, svg, unitFor } from "./dom.js";
import { savesOfSvg } from "./save.js";

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
/** The roofline's box, and what the axes leave of it. */
const [WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM, GAP] = [480, 300, 58, 22, 22, 44, 18];

/** Show the speed of light of an answer in its panel, which is hidden where the answer tells none. */
export function showSpeed(answer) {
  const box = byId("speed");
  const found = answer.speed_of_light;
  box.hidden = !found;
  if (!found) return show(box);
  const used = found.units.filter((one) => one.share > 0);
  const idle = found.units.filter((one) => !one.share).map((one) => one.name);
  show(box,
    el("h2", {}, "Speed of light"),
    found.bound ? el("p", {}, "Bound by ", el("b", { id: "speed-bound" }, found.bound), ".") : null,
    barTable("Share of each unit's peak over the predicted time", ["Unit", "Figure", "Share", "Achieved of peak"],
      used.map((one) => unitRow(one, Math.max(...used.map((each) => each.share))))),
    idle.length ? el("p", { class: "hint" }, `Idle: ${idle.join(", ")}.`) : null,
    el("h3", {}, "Roofline"),
    found.roofline.points.length ? roofline(found.roofline) : el("p", { class: "hint" }, "No arithmetic."));
}

function unitRow(one, most) {
  const [factor, unit] = unitFor([one.peak], MEASURES[one.measure]);
  const name = el("th", { scope: "row", role: "rowheader" }, one.name);
  return barRow(null, name, [part(one.share, one.share === most ? "up" : "plain"), percent(one.share),
    `${plain(one.achieved / factor)} of ${plain(one.peak / factor)} ${unit}`]);
}

function roofline({ points, dram_peak: memory }) {
  const made = picture(points, memory);
  const rows = points.map((one) => [named(one), one.intensity ?? "", one.achieved, one.peak, memory]);
  const titles = ["Arithmetic", "Operations for each byte", "Achieved, 1/s", "Peak, 1/s", "DRAM, B/s"];
  return el("div", {}, made, savesOfSvg(made, "Roofline", () => [titles, ...rows]), points.map((one) => el("p", { class: "hint" }, sentence(one, memory))));
}

const unitOf = (point) => (point.precision === "int" ? "op" : "FLOP");
const roofOver = (point, memory) =>
  (point.intensity === null ? point.peak : Math.min(point.peak, point.intensity * memory));

/** What the picture shows of a point, for all who cannot see it. */
function sentence(point, memory) {
  const unit = unitOf(point);
  const achieved = quantity(point.achieved, `${unit}/s`);
  const roof = roofOver(point, memory);
  const reached = `${achieved}, ${percent(point.achieved / roof)} of the roof above (${quantity(roof, `${unit}/s`)})`;
  if (point.intensity === null) return `${named(point)}: no device memory is moved; ${reached}.`;
  const side = point.intensity * memory < point.peak ? "memory" : "compute";
  return `${named(point)}: ${plain(point.intensity)} ${unit} for each byte of device memory, under the ${side} roof; ${reached}.`;
}

const named = (point) => (point.precision === "tensor" ? "Tensor" : point.precision.toUpperCase());

/** Operations a second against operations for each byte, both logarithmic, with the roofs. */
function picture(points, memory) {
  const ridges = points.map((one) => one.peak / memory);
  const known = points.map((one) => one.intensity).filter((value) => value);
  const decade = (round, value) => 10 ** round(Math.log10(value));
  const least = decade(Math.floor, Math.min(...known, ...ridges) / 2);
  const most = decade(Math.ceil, Math.max(...known, ...ridges) * 2);
  const highest = Math.max(...points.map((one) => one.peak));
  const bottom = decade(Math.floor, Math.min(...points.map((one) => one.achieved), least * memory) / 1.5);
  const ceiling = TOP + GAP * points.length;  // names of the roofs lie over the highest
  const [across, up] = [logarithmic(least, most), logarithmic(bottom, 1.5 * highest)];
  const x = (value) => LEFT + across(value) * (WIDE - LEFT - RIGHT);
  const y = (value) => HIGH - BOTTOM - up(value) * (HIGH - ceiling - BOTTOM);
  const unit = `${unitOf(points[0])}/s`;
  const rank = (one) => points.filter((other) => other.peak < one.peak).length;
  const below = apart(points.map((one) => y(one.achieved) + 15));
  const roof = (one, i) => [
    svg("polyline", { class: "roof", points:
      `${x(least)},${y(least * memory)} ${x(ridges[i])},${y(one.peak)} ${x(most)},${y(one.peak)}` }),
    svg("text", { class: "roof-name", x: x(most), y: y(highest) - 5 - GAP * rank(one), "text-anchor": "end" },
      `${named(one)} ${quantity(one.peak, unit)}`)];
  const point = (one, i) => {
    const at = x(one.intensity ?? most);
    const isRight = at > WIDE / 2;
    return [svg("circle", { class: "point", cx: at, cy: y(one.achieved), r: 5 }),
      svg("text", { class: "point-name", x: at + (isRight ? -9 : 9), y: below[i],
        "text-anchor": isRight ? "end" : "start" }, `${named(one)} ${quantity(one.achieved, unit)}`)];
  };
  return svg("svg", { class: "roofline", viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img",
    "aria-label": `Roofline. ${points.map((one) => sentence(one, memory)).join(" ")}` },
    decades(least, most).map((value) => [
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: ceiling, y2: HIGH - BOTTOM }),
      svg("text", { class: "tick", x: x(value), y: HIGH - BOTTOM + 16, "text-anchor": "middle" }, String(value))]),
    decades(bottom, 1.5 * highest).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, quantity(value, "").trim())]),
    svg("text", { class: "tick", x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 8, "text-anchor": "middle" },
      `${unitOf(points[0])} for each byte of device memory`),
    svg("text", { class: "tick", x: 4, y: 13 }, unit),
    points.map(roof),
    slantName(x, y, least, Math.min(...ridges), memory),
    points.map(point));
}

/** Heights at least a gap from each other: those that are too near go down. */
function apart(heights) {
  const found = heights.slice();
  const order = heights.map((_, i) => i).sort((a, b) => heights[a] - heights[b]);
  order.slice(1).forEach((i, at) => (found[i] = Math.max(found[i], found[order[at]] + GAP)));
  return found;
}

/** The name of the slanted roof, along it. */
function slantName(x, y, least, ridge, memory) {
  const middle = Math.sqrt(least * ridge);
  const [atX, atY] = [x(middle), y(middle * memory)];
  const turn = Math.atan2(y(ridge * memory) - y(least * memory), x(ridge) - x(least)) * (180 / Math.PI);
  return svg("text", { class: "roof-name", x: atX, y: atY - 6, "text-anchor": "middle",
    transform: `rotate(${turn.toFixed(1)} ${atX} ${atY})` }, `DRAM ${quantity(memory, "B/s")}`);
}

/** Powers of ten between two values, six at most. */
function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const step = Math.max(1, Math.ceil((last - first + 1) / 6));
  const found = [];
  for (let at = first; at <= last; at += step) found.push(Number(`1e${at}`));
  return found;
}
