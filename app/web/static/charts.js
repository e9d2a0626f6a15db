// Small figures inside table cells: a bar says at a glance what the number beside it says exactly.

import { el, quantity, svg } from "./dom.js";
import { savesOfTable } from "./save.js";

const share = (value) => `${Math.max(0, Math.min(100, 100 * value)).toFixed(2)}%`;

/** A bar from `from` to `to`, both 0 to 1, in the style of `kind` (`plain`, `up`, `down`). */
export function bar(from, to, kind = "plain") {
  const low = Math.min(from, to);
  return frame(svg("rect", {
    class: kind, x: share(low), y: "15%", height: "70%", width: share(Math.max(from, to) - low), rx: 1.5,
  }));
}

/** A share of a whole, 0 to 1, on the track of the whole. */
export function part(value, kind = "plain") {
  const rect = (name, width) => svg("rect", { class: name, x: 0, y: "15%", height: "70%", width: share(width), rx: 1.5 });
  return frame(rect("track", 1), rect(kind, value));
}

/** An interval with the value marked in it, all 0 to 1 on the scale of the column. */
export function interval(low, value, high) {
  return frame(
    svg("rect", { class: "range", x: share(low), y: "32%", height: "36%", width: share(high - low), rx: 2 }),
    svg("rect", { class: "mark", x: share(value), y: "10%", height: "80%", width: 3, rx: 1 }),
  );
}

function frame(...parts) {
  return svg("svg", { class: "bar", "aria-hidden": "true", focusable: "false" }, parts);
}

/** Where a value lies between two others, 0 to 1. */
export function linear(low, high) {
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

/** The same on a logarithmic scale. */
export function logarithmic(low, high) {
  const along = linear(Math.log(low), Math.log(high));
  return (value) => along(Math.log(value));
}

/** The steps from `start` to the end: [{from, to}] in the unit of the values. */
export function steps(start, values) {
  let at = start;
  return values.map((value) => {
    const from = at;
    at += value;
    return { from, to: at };
  });
}

/** A table whose rows hold a name, a bar and numbers. Narrow screens lay it out as a grid, which
 *  would take its meaning from it but for the roles. */
export function barTable(caption, titles, rows) {
  const made = el("table", { class: "bars", role: "table" },
    el("caption", {}, caption),
    el("thead", { class: "visually-hidden", role: "rowgroup" }, el("tr", { role: "row" },
      titles.map((title) => el("th", { scope: "col", role: "columnheader", class: title === "Figure" ? "pic" : null }, title)))),
    el("tbody", { role: "rowgroup" }, rows));
  return el("div", {}, made, savesOfTable(made, caption));
}

/** Such a table of differences by component, {name: amount}, on both sides of nothing; those of `least` or more. */
export function differences(caption, changes, unit, least) {
  const rows = Object.entries(changes).filter(([, change]) => Math.abs(change) > least);
  if (!rows.length) return null;
  const values = rows.map(([, change]) => change);
  const at = linear(Math.min(0, ...values), Math.max(0, ...values));
  return barTable(caption, ["Component", "Figure", "Difference"],
    rows.map(([name, change]) => barRow(null, el("th", { scope: "row", role: "rowheader" }, name),
      [bar(at(0), at(change), change > 0 ? "up" : "down"), quantity(change, unit, { sign: true })])));
}

/** A row of such a table; `kind` is its class. */
export function barRow(kind, name, [figure, ...numbers]) {
  return el("tr", { class: kind, role: "row" }, name,
    el("td", { class: "pic", role: "cell" }, figure),
    numbers.map((text) => el("td", { class: "num", role: "cell" }, text)));
}
