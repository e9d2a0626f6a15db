// How near a launch comes to what the hardware can do: bars of each unit's peak, and the roofline.

import { barRow, barTable, logarithmic, part } from "./charts.js";
import { byId, el, percent, plain, quantity, show, svg, unitFor } from "./dom.js";
import { savesOfSvg } from "./save.js";

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
