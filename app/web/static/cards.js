// Numbers with what they rest on, and what was guessed on the way to them.

import { interval, logarithmic } from "./charts.js";
import { QUANTITIES, between, el, percent, plain, quantity } from "./dom.js";

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
  return trust ? el("p", { class: "hint trust" }, el("b", {}, trust.mark), `: ${trust.why}`) : null;
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
