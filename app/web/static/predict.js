// A prediction and all that explains it.

import { get, post } from "./api.js";
import { estimate, needsBox, trustLine, warningsBox } from "./cards.js";
import { bar, barRow, barTable, linear, steps } from "./charts.js";
import { showCode } from "./code.js";
import { announce, byId, copyField, el, joules, percent, plain, quantity, say, seconds, show, watts } from "./dom.js";
import * as kernel from "./kernel.js";
import { showSpeed } from "./speed.js";
import { open } from "./tabs.js";

const MOST_PARTS = 12;
const HOT_ROWS = 5000;

let current = null;
let hotspots = null;
let cudaText = null;

export const shown = () => current;

async function predict(event) {
  event.preventDefault();
  const button = byId("predict");
  say(byId("kernel-error"), "");
  byId("busy").textContent = "predicting";
  button.disabled = true;
  try {
    const cuda = kernel.language() === "cuda" ? kernel.sourceText() : null;
    const answer = await post("/predict", kernel.predictRequest());
    cudaText = cuda;
    open("predict");
    showPrediction(answer);
  } catch (error) {
    kernel.complain(error);
  } finally {
    byId("busy").textContent = "";
    button.disabled = false;
  }
}

/** Show the prediction of this id, and its request in the form. */
export async function openPrediction(id) {
  const path = `/predictions/${encodeURIComponent(id)}`;
  open("predict");
  say(byId("kernel-error"), "");
  try {
    const answer = await get(path);
    cudaText = null;
    const isCode = answer.kernel !== null;
    if (isCode) kernel.fill((await get(`${path}/request`)).request);
    showPrediction(answer);
  } catch (error) {
    kernel.complain(error);
  }
}

function showPrediction(answer) {
  current = answer;
  const url = `/?prediction=${answer.id}`;
  history.replaceState(null, "", url);
  byId("result-empty").hidden = true;
  byId("result").hidden = false;
  const name = answer.kernel?.demangled ?? "Measured work";
  byId("result-title").textContent = `${name} on ${answer.gpu}`;
  byId("share").value = new URL(url, location.href).href;
  byId("result-sub").textContent =
    `${plain(answer.clocks.core_mhz, 4)} MHz core, ${plain(answer.clocks.memory_mhz, 4)} MHz memory`
    + (answer.model ? ` · power: ${answer.model.family}, version ${answer.model.version}` : "")
    + (answer.time_model ? ` · time: ${answer.time_model.family}` : "");
  show(byId("needs"), trustLine(answer.trust), needsBox(answer.needs));
  show(byId("numbers"),
    estimate("number-power", "Power", answer.power, "watts", watts),
    estimate("number-time", "Time", answer.time, "seconds", seconds),
    estimate("number-energy", "Energy", answer.energy, "joules", joules));
  show(byId("facts"), facts(answer));
  show(byId("warnings"), warningsBox(answer.warnings));
  kernel.showLoops(answer.trip_counts);
  byId("explain-target").value = answer.power ? "power" : "time";
  explain();
  showSpeed(answer);
  showComponents(answer);
  showHotspots();
  showAdvice();
  announce(`Predicted: ${watts(answer.power?.watts)}, ${seconds(answer.time?.seconds)}, `
    + `${joules(answer.energy?.joules)}`);
}

function facts(answer) {
  const told = [];
  const { time_model: model } = answer;
  if (model?.bound || model?.regime) told.push(["Bound by", model.bound ?? model.regime]);
  if (answer.occupancy) told.push(["Occupancy",
    `${percent(answer.occupancy.occupancy)}, limited by ${answer.occupancy.limiter}`]);
  if (answer.registers) {
    const { value, low, high, how } = answer.registers;
    told.push(["Registers", `${value} a thread${low < high ? `, between ${low} and ${high}` : ""} (${how})`]);
  }
  for (const one of answer.trip_counts.slice(0, 8))
    told.push([`Loop ${one.loop ?? one.line}`, `${plain(one.trips)} trips (${one.how})`]);
  if (answer.compiled) told.push(["Compiled by",
    `${answer.compiled.compiler} for ${(answer.compiled.target / 10).toFixed(1)}`]);
  return el("dl", { class: "facts" }, told.map(([term, text]) => [el("dt", {}, term), el("dd", {}, text)]));
}

async function explain() {
  const asked = current.id;
  const box = byId("explanation");
  const query = new URLSearchParams({
    prediction_id: asked, method: byId("explain-method").value,
    target: byId("explain-target").value, format: "json",
  });
  if (!current.power && !current.time) return show(box, el("p", { class: "hint" }, "Nothing to explain."));
  try {
    const found = await get(`/explain?${query}`);
    if (current.id === asked) show(box, waterfall(found));
  } catch (error) {
    if (current.id === asked) show(box, el("p", { class: "error" }, error.message));
  }
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
  const rows = first.map((one) => ({
    name: one.condition ?? (isPower && one.value !== null
      ? `${one.feature} = ${plain(one.value, 4)}` : one.feature),
    amount: one[word], meaning: one.meaning,
  }));
  if (others.length) rows.push({
    name: `${others.length} others`, meaning: "",
    amount: others.reduce((sum, one) => sum + one[word], 0),
  });
  const spans = steps(start, rows.map((row) => row.amount));
  const values = [start, end, ...spans.flatMap((s) => [s.from, s.to])];
  const at = linear(Math.min(...values, 0), Math.max(...values));
  const row = (name, meaning, from, to, kind, text, total) => barRow(total ? "total" : null,
    el("th", { scope: "row", role: "rowheader", class: "wrap" }, name, meaning ? el("span", { class: "meaning" }, meaning) : null),
    [bar(at(from), at(to), kind), text]);
  return el("div", { id: "waterfall" },
    el("p", { class: "hint" }, isShap
      ? `Exact SHAP values of the ${found.model.family} model: base and parts sum to the prediction.`
      : `LIME on the ${found.model.family} model: a local linear model, R² ${plain(found.r_squared)}; `
        + "an approximation."),
    barTable(isPower ? "What makes the power" : "What makes the time", ["Part", "Figure", "Amount"], [
      row(isShap ? "Base" : "Intercept", "", 0, start, "plain", quantity(start, unit), true),
      rows.map((one, i) => row(one.name, one.meaning, spans[i].from, spans[i].to,
        one.amount > 0 ? "up" : "down", quantity(one.amount, unit, { sign: true }))),
      row(isShap ? "Prediction" : "Linear model", "", 0, end, "plain", quantity(end, unit), true)]));
}

function showComponents(answer) {
  const box = byId("components");
  byId("components-panel").hidden = !answer.components;
  if (answer.components) show(box, componentTable(answer.components, answer.power.watts, "W"));
}

function componentTable(parts, total, unit) {
  const rows = Object.entries(parts).sort((a, b) => b[1] - a[1]).filter(([, value]) => value !== 0);
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)));
  return barTable(`Sums to ${quantity(total, unit)}`, ["Component", "Figure", "Amount", "Share"],
    rows.map(([name, value]) => barRow(null, el("th", { scope: "row", role: "rowheader" }, name),
      [bar(0, Math.abs(value) / most), quantity(value, unit), percent(value / total)])));
}

async function showHotspots() {
  const asked = current.id;
  hotspots = null;
  show(byId("hot-list"));
  show(byId("code"));
  byId("code").hidden = true;
  byId("code-note").textContent = "";
  byId("code-choice").hidden = true;
  if (!current.kernel) return;
  try {
    const found = await get(`/predictions/${asked}/hotspots?rows=${HOT_ROWS}`);
    const { request } = await get(`/predictions/${asked}/request`);
    if (current.id !== asked) return;
    hotspots = { ...found, ptx: request.ptx };
    byId("code-choice").hidden = !found.source_lines.rows.length;
    byId("code-what").value = cudaText && found.source_lines.rows.length ? "cuda" : "ptx";
    showWhat();
    if (byId("components-panel").hidden) showEnergyByComponent(found);
  } catch (error) {
    if (current.id === asked) byId("code-note").textContent = error.message;
  }
}

function showWhat() {
  const isPtx = byId("code-what").value === "ptx";
  const { rows, rest } = isPtx ? hotspots.lines : hotspots.source_lines;
  showCode(isPtx ? hotspots.ptx : cudaText, rows,
    { what: isPtx ? "PTX" : "CUDA source", complete: rest.rows === 0 });
}

/** A boosted model knows no components; the physical model that shares its answer out does. */
function showEnergyByComponent(found) {
  const sums = {};
  for (const row of found.blocks.rows)
    for (const [name, value] of Object.entries(row.components)) sums[name] = (sums[name] ?? 0) + value;
  sums["starting blocks"] = found.start.joules;
  byId("components-panel").hidden = false;
  show(byId("components"),
    el("p", { class: "hint" }, `The ${current.model?.family ?? ""} model knows no components; the physical `
      + "model shares its energy out so."),
    componentTable(sums, found.joules, "J"));
}

async function showAdvice() {
  const asked = current.id;
  byId("advice-panel").hidden = true;
  if (!current.kernel) return;
  let found;
  try {
    found = await get(`/predictions/${asked}/advice`);
  } catch {
    return; // nothing to advise, or nothing that can be
  }
  if (current.id !== asked) return;
  byId("advice-panel").hidden = false;
  show(byId("advice"), found.advice.length
    ? [el("p", { class: "hint" }, "Each gain is the difference of two predictions of the "
      + `${found.model.family} model; each stands alone, so they do not add up.`),
      el("ol", { class: "advice" }, found.advice.map(adviceItem))]
    : el("p", { class: "hint" }, "Nothing was found that the models would reward."));
}

function adviceItem(one) {
  const { gain } = one;
  return el("li", {},
    el("p", {}, el("b", {}, one.remedy)),
    el("p", {}, el("span", { class: gain.joules > 0 ? "good" : null },
      saved(gain.joules, "J", "energy", gain.energy_percent)), ", ",
    saved(gain.seconds, "s", "time", gain.time_percent)),
    el("p", { class: "hint" }, one.detail,
      one.places.length ? ` Line ${one.places.slice(0, 5).map((place) => place.line).join(", ")}.` : ""));
}

const saved = (amount, unit, what, share) => `${quantity(Math.abs(amount), unit)} `
  + `${amount < 0 ? "more" : "less"} ${what} (${plain(Math.abs(share))} %)`;

export function start() {
  byId("kernel-form").addEventListener("submit", predict);
  byId("explain-target").addEventListener("change", explain);
  byId("explain-method").addEventListener("change", explain);
  byId("code-what").addEventListener("change", showWhat);
  byId("copy").addEventListener("click", () => copyField(byId("share"), byId("copy"), "The link"));
  byId("source").addEventListener("input", () => (cudaText = null));
}
