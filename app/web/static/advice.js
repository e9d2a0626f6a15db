// What would save: the first of it beside the numbers, all of it in a list, each to be tried.

import { button, byId, el, plain, quantity, show, signed } from "./dom.js";
import * as diff from "./diff.js";
import * as kernel from "./kernel.js";
import { open } from "./tabs.js";

const saved = (amount, unit, what, share) => `${quantity(Math.abs(amount), unit)} `
  + `${amount < 0 ? "more" : "less"} ${what} (${plain(Math.abs(share))} %)`;
const bound = (one, before) => (one.promise === "estimate" ? "" : before + one.promise.replace("_", " "));
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Show the advice of an answer; `mend` says what to replace in an example: {code: [old, new]}. */
export function showAdvice(found, mend = {}) {
  const { advice = [], unpriced = [], needs = [] } = found ?? {};
  show(byId("first-advice"), !found ? el("p", { class: "hint" }, "No advice for this one.")
    : unpriced.length ? asksFirst(unpriced, needs) : advice.length ? first(advice, mend) : [
      el("h3", {}, "What would save"),
      el("p", {}, "Nothing was found that would save noticeably.")]);
  byId("advice-panel").hidden = !advice.length;
  show(byId("advice"), advice.length
    ? [el("p", { class: "hint" }, "Each gain is the difference of two predictions of the "
      + `${found.model.family} model; each stands alone, so they do not add up.`),
      el("ol", { class: "advice" }, advice.map((one) => item(one, mend)))] : null);
}

/** What rests on a guess: what to give first, and what may be worth changing. */
const asksFirst = (unpriced, needs) => [
  el("h3", {}, "What would save"),
  el("p", {}, "What a change saves rests on what is not given. ",
    needs.length ? `Give first: ${needs.map((need) => need.argument).join(", ")}.` : ""),
  el("ul", {}, unpriced.slice(0, 3).map((one) => el("li", {}, sentence(one.remedy), lines(one), "."))),
];

function first(advice, mend) {
  const [one] = advice;
  const { gain } = one;
  return [
    el("h3", {}, "What would save"),
    el("p", { class: "gain" }, el("b", { class: gain.joules > 0 ? "good" : null }, signed(-gain.energy_percent)),
      ` energy, ${signed(-gain.time_percent)} time${bound(one, ", ")}`),
    el("p", {}, sentence(one.remedy), lines(one), "."),
    el("div", { class: "row tight" }, tries(one, mend, true),
      advice.length > 1 ? el("a", { href: "#advice-panel", onclick: (event) => {
        event.preventDefault();
        byId("advice-panel").scrollIntoView();
      } }, `${advice.length - 1} more`) : null),
  ];
}

const lines = (one) => {
  const isCuda = kernel.language() === "cuda";
  const at = one.places.map((place) => (isCuda ? place.source_line : place.line)).filter(Boolean);
  const told = [...new Set(at)].slice(0, 5);
  return told.length ? ` (line ${told.join(", ")})` : "";
};

function item(one, mend) {
  const { gain } = one;
  return el("li", {},
    el("p", {}, el("b", {}, sentence(one.remedy))),
    el("p", {}, el("span", { class: gain.joules > 0 ? "good" : null },
      saved(gain.joules, "J", "energy", gain.energy_percent)), ", ",
    saved(gain.seconds, "s", "time", gain.time_percent),
    bound(one, "; ")),
    el("p", { class: "hint" }, one.detail, lines(one), "."),
    one.snippet_before && one.snippet_after ? el("div", { class: "fields sides" },
      snippet("Before", one.snippet_before), snippet("After", one.snippet_after)) : null,
    el("div", { class: "row tight" }, tries(one, mend, false)));
}

const snippet = (title, text) => el("div", { class: "snippet" }, el("h3", {}, title),
  el("pre", { class: "code preview", tabindex: 0, role: "region", "aria-label": `Code, ${title.toLowerCase()}` }, text));

/** What the code would be, where that is known: an example's own mending, or lines that stand in it. */
function mended(one, mend) {
  const text = kernel.sourceText();
  const pair = mend[one.code] ?? [one.snippet_before, one.snippet_after];
  return pair[0] && text.includes(pair[0]) ? text.replaceAll(pair[0], pair[1]) : null;
}

/** Buttons: change the code here, or put old and new beside each other. */
function tries(one, mend, isFirst) {
  const text = mended(one, mend);
  const about = one.code.replaceAll("_", " ");
  const tried = (act) => {
    const made = button("Try it", act, about);
    [made.className, made.id] = ["small", "try"];
    return made;
  };
  return [
    text !== null && isFirst && tried(() => kernel.edit(mended(one, mend) ?? kernel.sourceText())),
    one.request && isFirst && tried(() => kernel.change(one.request)),
    (text !== null || one.snippet_after) && button("Compare old and new", () => {
      const old = kernel.sourceText();
      diff.offer(old, mended(one, mend) ?? `${suggestion(one)}${old}`);
      open("diff", { focus: true });
    }, about),
  ];
}

/** The advice as a comment at the head of the code, to be followed by hand. */
const suggestion = (one) => `/* ${one.remedy}\n\n   before:\n${one.snippet_before ?? ""}\n\n   after:\n${
  one.snippet_after}\n*/\n`.replaceAll(/\*\/(?!\n$)/g, "* /");
