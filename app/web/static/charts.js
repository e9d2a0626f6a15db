// Small figures inside table cells: a bar says at a glance what the number beside it says exactly.

import { el, quantity, svg } from "./dom.js";
import { savesOfTable } from "./save.js";

export const share = (value) => `${Math.max(0, Math.min(100, 100 * value)).toFixed(2)}%`;

const rect = (kind, from, to) => svg("rect", {
  class: kind, x: share(from), y: "15%", height: "70%", width: share(to - from), rx: 1.5,
});

/** A bar from `from` to `to`, both 0 to 1, in the style of `kind` (`plain`, `up`, `down`). */
export const bar = (from, to, kind = "plain") => frame(rect(kind, Math.min(from, to), Math.max(from, to)));

/** A share of a whole, 0 to 1, on the track of the whole. */
export const part = (value, kind = "plain") => frame(rect("track", 0, 1), rect(kind, 0, value));

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

/** A table whose rows hold a name, a bar and numbers. Narrow screens lay it out as a grid, which would take its
 *  meaning from it but for the roles. `kind` is its class, `told` what files say of the bars where they show titles. */
export function barTable(caption, titles, rows, { kind = "bars", told = null } = {}) {
  const made = el("table", { class: kind, role: "table" },
    el("caption", {}, caption),
    el("thead", { class: told ? null : "visually-hidden", role: "rowgroup" }, el("tr", { role: "row" },
      titles.map((title, at) => (title === "Figure"
        ? el("th", { scope: "col", role: "columnheader", class: "pic", "data-value": told }, el("span", { class: "visually-hidden" }, title))
        : el("th", { scope: "col", role: "columnheader", class: told && at ? "num" : null }, title))))),
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
