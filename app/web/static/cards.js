// Numbers with what they rest on, and what was guessed on the way to them.

import { QUANTITIES, between, el, percent, plain, quantity, svg } from "./dom.js";
import { savesOfTable } from "./save.js";

const BASES = {
  seen_kernel: ["Measured before", "this PTX has accepted measurements"],
  unseen_kernel: ["Not measured before", "the interval is from kernels that the model was not trained on"],
  extrapolated: ["Beyond the measurements", "outside what the model was trained on"],
  uncalibrated: ["No measurement of this GPU", "datasheet facts only"],
};
/** A large figure with a title, and what stands below it: nodes or text. */
export function card(id, title, value, ...below) {
  return el("div", { class: "number", id }, el("h3", {}, title),
    el("div", { class: "value" }, value), below);
}

/** An estimate of an answer, {[unit], low, high, level, basis}, or null where no model answers. */
export function estimate(id, title, part, unit, format, { isBrief = false } = {}) {
  if (!part) return card(id, title, "unknown",
    el("p", { class: "hint" }, "No model answers; see the warnings."));
  const [name, meaning] = BASES[part.basis] ?? [part.basis, ""];
  const at = logarithmic(part.low, part.high);
  const made = card(id, title, format(part[unit]),
    interval(0, at(part[unit]), 1),
    el("div", { class: "interval" }, `${between(part, format)}, ${percent(part.level, 2)}`),
    el("p", { class: "hint basis", title: isBrief ? meaning : null }, el("span", { class: "basis-name" }, name),
      el("span", { class: isBrief ? "visually-hidden" : null }, ": ", meaning)));
  made.classList.add(`basis-${part.basis}`);
  return made;
}

/** The three of an answer, with ids that begin with `prefix`. */
export const estimates = (prefix, answer, options) => Object.entries(QUANTITIES).map(([name, [title, unit, format]]) =>
  estimate(`${prefix}-${name}`, title, answer[name], unit, format, options));

/** An estimate in a table: the value over its interval, with a figure of it on the scale `at` if that is given. */
export const estimated = (part, [, unit, format], at = null) => [
  el("b", {}, format(part[unit])), " ",
  el("span", { class: "hint range-text" }, between(part, format)),
  at && interval(at(part.low), at(part[unit]), at(part.high))];

/** Price and CO2 under ids; where no rate was given, what to give. */
export function rates({ price, co2 }, priceId, co2Id) {
  const rate = (id, title, part, amount, format, hint) => (part
    ? card(id, title, format(part[amount]), el("div", { class: "interval" }, between(part, format)))
    : card(id, title, "–", el("p", { class: "hint" }, hint)));
  return [
    rate(priceId, "Price", price, "amount", (value) => `${plain(value, 4)} ${price.currency}`, "Give a price per kWh to see it."),
    rate(co2Id, "CO2", co2, "grams", (value) => quantity(value, "g"), "Give a carbon intensity to see it."),
  ];
}

/** Facts, [term, text]. */
export const facts = (told) => el("dl", { class: "facts" },
  told.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));

/** What the answer is worth, by one rule. */
export function trustLine(trust) {
  return trust ? el("p", { class: "hint trust" },
    el("b", {}, trust.mark === "guess" ? "rough estimate" : trust.mark), `: ${trust.why}`) : null;
}

/** Arguments to give first, open and above the numbers that rest on their absence. */
export function needsBox(needs = []) {
  if (!needs.length) return null;
  return el("ul", { class: "notice" }, needs.map((need) => el("li", { class: "wrap" },
    "Give ", el("b", {}, need.argument), ` (argument ${need.position}): it decides the ${need.decides}; `
    + `${need.effect}. Assumed: ${need.assumed.toLocaleString("en")} `
    + `${need.assumes === "trips" ? "trips" : "as its value"}.`)));
}

/** Warnings, folded up; nothing where there are none. */
export function warningsBox(warnings) {
  if (!warnings.length) return null;
  return el("details", {},
    el("summary", {},
      `${warnings.length} ${warnings.length === 1 ? "thing was" : "things were"} assumed or unknown`),
    el("ul", {}, warnings.map((one) => el("li", { class: "wrap" }, one.detail,
      one.line ? el("span", { class: "hint" }, ` (line ${one.line})`) : null))));
}

/**
 * A table that scrolls by itself where it is too wide, and can be saved.
 * `columns`: [{title, of: (row) => node or text, num, head, hidden, value: (row) => what a file holds
 * instead, unit: of that}]; `chosen(row)` marks rows.
 */
export function table(caption, columns, rows, { chosen, kind } = {}) {
  const head = el("tr", {}, columns.map((c) =>
    el("th", { scope: "col", class: c.num ? "num" : null, "data-value": c.unit ? `${c.title}, ${c.unit}` : null },
      c.hidden ? el("span", { class: "visually-hidden" }, c.title) : c.title)));
  const body = rows.map((row) => el("tr", { class: chosen && chosen(row) ? "chosen" : null },
    columns.map((c) => el(c.head ? "th" : "td",
      { class: c.num ? "num" : c.class || null, scope: c.head ? "row" : null, "data-value": c.value?.(row) },
      c.of(row)))));
  const made = el("table", { class: kind || null }, el("caption", {}, caption), el("thead", {}, head),
    el("tbody", {}, body));
  return el("div", {},
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made),
    rows.length ? savesOfTable(made, caption) : null);
}

// Small figures inside table cells: a bar says at a glance what the number beside it says exactly.

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
