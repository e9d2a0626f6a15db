// Old code beside new code: what a change changes, and whether that is within limits.

import { post } from "./api.js";
import { SourceBox } from "./box.js";
import { warningsBox } from "./cards.js";
import { differences } from "./charts.js";
import { announce, asking, byId, copyField, el, joules, plain, seconds, show, table, watts } from "./dom.js";
import { chosenGpus } from "./gpus.js";
import * as kernel from "./kernel.js";

const QUANTITIES = { energy: ["Energy", "joules", joules], time: ["Time", "seconds", seconds], power: ["Power", "watts", watts] };
const OPENED = 3;
/** Share of the energy below which a component's change is rounding. */
const NOTHING = 1e-6;

const sides = {};

function compareRequest() {
  const asked = { old: sides.old, new: sides.new };
  for (const [name, box] of Object.entries(asked))
    if (!box.text.trim()) throw new Error(`Paste the ${name} code first, or take the form's.`);
  const body = { old: sides.old.member, new: sides.new.member, ...kernel.settings(sides.new.kernels) };
  const chosen = chosenGpus(byId("diff-gpus"));
  body.gpus = chosen.length ? chosen : [kernel.gpu()];
  Object.assign(body, kernel.operating(), kernel.models());
  body.limits = limits();
  return body;
}

/** The limits given, in percent: {max_energy_percent: 5}. */
function limits() {
  const given = {};
  for (const name of Object.keys(QUANTITIES)) {
    const text = byId(`diff-${name}`).value.trim();
    if (!text) continue;
    const number = Number(text.replace("%", "").replace("−", "-").replace(",", "."));
    if (!Number.isFinite(number)) throw new Error(`${text}: a limit is a percentage, +5 or -2 say.`);
    given[`max_${name}_percent`] = number;
  }
  return given;
}

const compare = asking("diff", async () => {
  const asked = compareRequest();
  const found = await post("/compare", asked);
  byId("diff-result").hidden = false;
  showResult(found, asked.limits);
});

function showResult(found, given) {
  const broken = found.comparisons.filter((one) => one.exceeded.length).length;
  const isLimited = Object.keys(given).length > 0;
  const verdict = byId("diff-verdict");
  verdict.textContent = !isLimited ? "What changes" : found.passed ? "Within the limits"
    : found.comparisons.length === 1 ? "Beyond the limits"
      : `${broken} of ${found.comparisons.length} beyond the limits`;
  verdict.className = !isLimited ? "" : found.passed ? "good" : "bad-text";
  const names = (kernels) => kernels.map((one) => one.demangled).join(", ");
  byId("diff-sub").textContent = [
    found.added.length ? `Only in the new code: ${names(found.added)}.` : "",
    found.removed.length ? `Only in the old code: ${names(found.removed)}.` : "",
    isLimited ? "" : "No limit was given.",
  ].filter(Boolean).join(" ");
  show(byId("diff-tables"), found.comparisons.map((one) =>
    comparison(one, given, found.comparisons.length <= OPENED || one.exceeded.length > 0)));
  byId("diff-markdown").value = found.markdown;
  show(byId("diff-warnings"), warningsBox(found.warnings));
  announce(`Compared: ${verdict.textContent}`);
}

const signed = (share) => `${share > 0 ? "+" : share < 0 ? "−" : ""}${plain(Math.abs(share))} %`;

function comparison(one, given, isOpen) {
  const { model, clocks } = one;
  return el("details", { open: isOpen, class: "comparison" },
    el("summary", { class: "wrap" }, `${one.new.kernel.demangled} on ${one.gpu}: energy ${signed(one.change.energy_percent)}`,
      one.exceeded.length ? el("span", { class: "bad-text" }, ", beyond the limits") : null),
    el("p", { class: "hint" }, `${plain(clocks.core_mhz, 4)} MHz core, ${plain(clocks.memory_mhz, 4)} MHz memory`
      + ` · power: ${model.family}, version ${model.version}`),
    table("Prediction and interval of one launch", [
      { title: "Quantity", head: true, hidden: true, of: ([, [title]]) => title },
      { title: "Change", num: true, of: ([name]) => el("b", {}, signed(one.change[`${name}_percent`])) },
      { title: "Limit", num: true, of: ([name]) => limit(`max_${name}_percent`, one, given) },
      { title: "Old", of: ([name, as]) => told(one.old[name], as) },
      { title: "New", of: ([name, as]) => told(one.new[name], as) },
    ], Object.entries(QUANTITIES)),
    differences("Energy by component, new less old", one.components ?? {}, "J", NOTHING * one.old.energy.joules));
}

const told = (part, [, unit, format]) => [el("b", {}, format(part[unit])),
  el("span", { class: "hint range-text" }, `${format(part.low)} to ${format(part.high)}`)];

function limit(name, one, given) {
  if (given[name] === undefined) return "none";
  const isBroken = one.exceeded.includes(name);
  return [signed(given[name]),
    el("span", { class: isBroken ? "verdict bad-text" : "verdict good" }, isBroken ? "beyond" : "within")];
}

/** Put two versions of the code into the form, to be compared. */
export function offer(old, changed) {
  sides.old.set(old);
  sides.new.set(changed);
  byId("diff-result").hidden = true;
}

export function start() {
  for (const side of ["old", "new"]) {
    const box = new SourceBox(`diff-${side}`);
    sides[side] = box;
    byId(`diff-${side}-take`).addEventListener("click", () => {
      box.set(kernel.sourceText(), kernel.sourceName());
      announce(`The ${side} code is the form's.`);
    });
  }
  byId("diff-form").addEventListener("submit", compare);
  byId("diff-copy").addEventListener("click", () =>
    copyField(byId("diff-markdown"), byId("diff-copy"), "The table"));
}
