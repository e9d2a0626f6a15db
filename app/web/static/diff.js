// Old code beside new code: what a change changes, and whether that is within limits.

import { packaged, post } from "./api.js";
import { SourceBox } from "./box.js";
import { differences, estimated, logarithmic, table, warningsBox } from "./cards.js";
import {
  QUANTITIES, action, announce, button, byId, cells, colour, copyField, el, heads, numbers, parseDimensions, plain, show, signed,
  words,
} from "./dom.js";
import { members, submits, telling } from "./forms.js";
import { chosenGpus } from "./gpus.js";
import * as kernel from "./kernel.js";
import { draw, energyAgainstTime } from "./plot.js";
import { whenOpened } from "./tabs.js";

const OPENED = 3;
/** Share of the energy below which a component's change is rounding. */
const NOTHING = 1e-6;

const sides = {};

function compareRequest() {
  const asked = { old: sides.old, new: sides.new };
  for (const [name, box] of Object.entries(asked))
    if (!box.text.trim()) throw new Error(`Paste the ${name} code first, or take the form's.`);
  const chosen = chosenGpus(byId("diff-gpus"));
  const common = kernel.settings(sides.new.kernels);
  const own = ["grid", "block"].map((name) => [name, byId(`diff-${name}`).value.trim()]).filter(([, text]) => text);
  const launch = { ...common.launch, ...Object.fromEntries(own.map(([name, text]) => [name, parseDimensions(text)])) };
  return {
    old: sides.old.member, new: { ...sides.new.member, launch }, ...common,
    gpus: chosen.length ? chosen : [kernel.gpu()], ...kernel.operating(), ...kernel.models(), limits: {},
    ...members(byId("diff-form")),
  };
}

async function compare() {
  const asked = compareRequest();
  byId("diff-result").hidden = true;
  const found = await post("/compare", asked);
  showResult(found, asked.limits);
}

const isEmpty = () => !sides.old.text.trim() && !sides.new.text.trim();

/** The place opens on two versions of a kernel that were compared before. */
async function openExample() {
  const { request, prediction } = await packaged("diff");
  if (!isEmpty()) return;
  sides.old.set(request.old.cuda);
  sides.new.set(request.new.cuda);
  showResult(prediction, {});
}

function showResult(found, given) {
  byId("diff-result").hidden = false;
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

function comparison(one, given, isOpen) {
  const { model, clocks } = one;
  return el("details", { open: isOpen, class: "comparison" },
    el("summary", { class: "wrap" }, `${one.new.kernel.demangled} on ${one.gpu}: energy ${signed(one.change.energy_percent)}`,
      one.exceeded.length ? el("span", { class: "bad-text" }, ", beyond the limits") : null),
    el("p", { class: "hint" }, `${plain(clocks.core_mhz, 4)} MHz core, ${plain(clocks.memory_mhz, 4)} MHz memory`
      + ` · power: ${model.family}, version ${model.version}`),
    table("Prediction and interval of one launch", [
      { title: "Quantity", head: true, hidden: true, of: ([, [title]]) => title },
      ...numbers({ Change: ([name]) => el("b", {}, signed(one.change[`${name}_percent`])),
        Limit: ([name]) => limit(`max_${name}_percent`, one, given) }),
      ...cells({ Old: ([name, as]) => estimated(one.old[name], as), New: ([name, as]) => estimated(one.new[name], as) }),
    ], Object.entries(QUANTITIES)),
    differences("Energy by component, new less old", one.components ?? {}, "J", NOTHING * one.old.energy.joules));
}

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
  startGpus();
  for (const side of ["old", "new"]) {
    const box = new SourceBox(`diff-${side}`);
    sides[side] = box;
    byId(`diff-${side}-take`).addEventListener("click", () => {
      box.set(kernel.sourceText(), kernel.sourceName());
      announce(`The ${side} code is the form's.`);
    });
  }
  submits("diff", compare);
  whenOpened("diff", () => isEmpty() && telling("diff", openExample));
  byId("diff-copy").addEventListener("click", () =>
    copyField(byId("diff-markdown"), byId("diff-copy"), "The table"));
}

// The same launch on several GPUs: asked as code against itself, of which nothing is stored.

/** {gpu, energy, time, power, why} of each board; `why` it is not ranked, if it is not. */
let found = [];

async function compareGpus() {
  const gpus = chosenGpus(byId("compare-gpus"));
  if (!gpus.length) throw new Error("Choose GPUs first.");
  const { gpu: _, details: __, ptx, cuda, ...asked } = kernel.predictRequest();
  const code = ptx === undefined ? { cuda } : { ptx };
  const { comparisons, apart } = await post("/compare", { model: "auto", ...asked, old: code, new: code, gpus }).catch((error) => {
    error.message = error.message.replace(/^old: /, "");  // both sides are the form's code
    throw error;
  });
  const why = new Map(apart.map((one) => [one.gpu, one.why]));
  found = comparisons.map((one) => ({ gpu: one.gpu, ...one.new, why: why.get(one.gpu) }));
  byId("compare-result").hidden = false;
  draw(byId("compare-figure"), figure);
  showTable();
  announce(`${found.length} GPUs compared`);
}

/** Energy against time, a mark for each board. */
function figure() {
  const { at, axes } = energyAgainstTime(found);
  return {
    title: "Energy against time by board; the table says the same",
    data: [{
      ...at(found), mode: "markers+text", textposition: "top center", cliponaxis: false,
      text: found.map((one) => one.gpu), hoverinfo: "text",
      marker: { size: 10, color: found.map((one) => colour(one.why ? "control" : "bar")) },
    }],
    layout: axes({ type: "log", nticks: 8 }, { type: "log", nticks: 8 }),
  };
}

/** What an hour of each board costs, and a kWh, as far as they are given: "h100-sxm5=2.5 kWh=0.3". */
function prices() {
  return Object.fromEntries(byId("compare-prices").value.split(/[\s,;]+/).filter(Boolean).map((part) => {
    const [name, price] = part.split("=");
    if (!(Number(price) >= 0)) throw new Error(`${part}: a board with its price is taken, l4=0.6 say`);
    return [name.toLowerCase(), Number(price)];
  }));
}

/** What a million launches cost there, if the hour of the board has a price. */
function cost({ gpu, time, energy }, { kwh = 0, ...hour }) {
  return gpu in hour ? plain(1e6 * (time.seconds / 3600 * hour[gpu] + energy.joules / 3.6e6 * kwh)) : "";
}

function showTable() {
  const by = byId("compare-sort").value;
  const priced = prices();
  const valueOf = (one) => one[by][QUANTITIES[by][1]];
  const rows = found.slice().sort((a, b) => Boolean(a.why) - Boolean(b.why) || valueOf(a) - valueOf(b));
  const columns = Object.entries(QUANTITIES).map(([name, as]) => {
    const at = logarithmic(Math.min(...rows.map((one) => one[name].low)), Math.max(...rows.map((one) => one[name].high)));
    return { title: as[0], of: (one) => el("div", { class: "cell" }, estimated(one[name], as, at)) };
  });
  show(byId("compare-table"), table(`Sorted by ${by}, what cannot be compared last; intervals of 90 %`, [
    ...heads({ GPU: "gpu" }), ...columns,
    ...(Object.keys(priced).length ? numbers({ "A million launches cost": (one) => cost(one, priced) }) : []),
    ...words({ "Not ranked": "why" }),
    action((one) => button("Use", () => kernel.change({ gpu: one.gpu }), one.gpu)),
  ], rows));
}

function startGpus() {
  submits("compare", compareGpus);
  for (const id of ["sort", "prices"])
    byId(`compare-${id}`).addEventListener("change", () => found.length && telling("compare", showTable));
  whenOpened("compare", () => found.length || telling("compare", compareGpus));
}
