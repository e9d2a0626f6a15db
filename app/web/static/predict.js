// A prediction and all that explains it: asked for by hand or after each change, solved examples too.

import { showAdvice } from "./advice.js";
import { get, packaged, post } from "./api.js";
import { estimates, facts, needsBox, trustLine, warningsBox } from "./cards.js";
import * as code from "./code.js";
import { announce, byId, copyField, el, joules, percent, plain, say, seconds, show, signed, watts } from "./dom.js";
import * as kernel from "./kernel.js";
import { open, whenOpened } from "./tabs.js";
import { asked as askedWhy, showComponents, showSpeed, showWhy } from "./why.js";

/** The example that the page opens with. */
const FIRST = "transpose";
const HOT_ROWS = 5000;
/** How long changes that follow each other must rest before they are asked about: longer than a key held down repeats
 *  (33 ms). One that follows none is asked about at once. */
const REST_MILLISECONDS = 40;
/** A difference of energy below this is rounding. */
const SAME = 5e-5;

let current = null;
/** Joules of the state shown, of the one before, and of the first since the code was opened. */
let showing = null;
let last = null;
let first = null;
/** How advice is followed in the example that was opened. */
let mend = {};
let asking = null;
let later = null;
let changedAt = -Infinity;
let isStale = false;

export const shown = () => current;

/** Old results are dimmed until those of the code as it is now are there. */
function stale(now) {
  isStale = now;
  byId("result").dataset.state = now ? "stale" : "fresh";
  for (const id of ["answer", "details", "ptx-panel", "energy-panel"]) {
    byId(id).classList.toggle("stale", now);
    byId(id).setAttribute("aria-busy", String(now));
  }
}

const isOpen = () => !byId("view-predict").closest("[role=tabpanel]").hidden;

/** Something in the form is different: what is under way is about what was. */
function changed({ isOther = false } = {}) {
  if (isOther) {
    opened();
    for (const button of buttons()) button.setAttribute("aria-pressed", "false");
  }
  asking?.abort();
  clearTimeout(later);
  if (current) stale(true);
  const isRepeated = performance.now() - changedAt < REST_MILLISECONDS;
  changedAt = performance.now();
  later = setTimeout(() => (isOpen() ? ask() : null), isRepeated ? REST_MILLISECONDS : 0);
}

/** Ask about the form as it is; a later question cancels this one. `byHand`: somebody pressed the button. */
async function ask({ byHand = false } = {}) {
  if (byHand) open("predict");
  kernel.settle();
  clearTimeout(later);
  asking?.abort();
  if (!byHand && (!kernel.sourceText().trim() || !byId("kernel-form").checkValidity())) return kernel.content();
  if (current) stale(true);
  asking = new AbortController();
  const { signal } = asking;
  byId("busy").textContent = "predicting";
  try {
    const isCuda = kernel.language() === "cuda";
    const asked = kernel.predictRequest();
    const prediction = await post("/predict", asked, { signal });
    kernel.content(prediction.warnings);
    await present(prediction, { isCuda, signal, ptx: asked.ptx });
  } catch (error) {
    if (error.name !== "AbortError") kernel.complain(error);
  } finally {
    if (!asking || asking.signal === signal) byId("busy").textContent = "";
  }
}

/** Show the prediction of this id, and its request in the form. */
export async function openPrediction(id) {
  const path = `/predictions/${encodeURIComponent(id)}`;
  open("predict");
  opened();
  try {
    const answer = await get(path);
    const isCode = answer.kernel !== null;
    if (isCode) kernel.fill((await get(`${path}/request`)).request);
    opened();
    kernel.content();
    await present(answer, { isCuda: false, ptx: isCode ? kernel.sourceText() : "" });
  } catch (error) {
    kernel.complain(error);
  }
}

/** An example that was solved before it was asked: its answers, as this service's packaged models give them. */
async function openExample(solved, link) {
  kernel.fill(solved.request, solved.name);
  opened();
  kernel.content();
  mend = solved.mend;
  vary(solved.sweep);
  await present(solved.prediction, { isCuda: Boolean(solved.request.cuda), solved, link });
}

const buttons = () => [...document.querySelectorAll("[data-example]")];

async function pickExample(name) {
  const solved = await packaged(name);
  await openExample(solved, name === FIRST ? "/" : `/?example=${name}`);
  for (const button of buttons()) button.setAttribute("aria-pressed", String(button.dataset.example === name));
  return solved.request.gpu;
}

/** Show the example that the address names, or the first, unless somebody was faster: its GPU. */
export async function openFirst() {
  const asked = new URLSearchParams(location.search).get("example");
  const name = buttons().some((button) => button.dataset.example === asked) ? asked : FIRST;
  return kernel.sourceText() ? null : pickExample(name);
}

/** What is shown from now on is not a change of what was. */
function opened() {
  asking?.abort();
  clearTimeout(later);
  [showing, first, mend] = [null, null, {}];
  vary();
}

/** Macros of this source that its sweep tries: an example's; of other code nobody knows. */
function vary(macros = {}) {
  for (const name of ["defines", "grid", "block"]) byId(`sweep-${name}`).value = macros[name] ?? "";
  byId("sweep-variants").open = Boolean(macros.defines);
}

/** Show a prediction, then what the service says about it: or said, of a solved example. */
async function present(answer, { isCuda, signal, ptx, solved = null, link = null }) {
  current = answer;
  last = showing;
  showing = answer.energy?.joules ?? null;
  first ??= showing;
  if (last === null || !answer.power) {
    byId("explain-target").value = answer.power ? "power" : "time";
    byId("explain-method").value = "shap";
  }
  const asked = solved ?? aboutIt(answer, ptx, signal);  // under way while the numbers are drawn
  showNumbers(answer, link ?? `/?prediction=${answer.id}`);
  const found = await asked;
  if (current !== answer) return;
  showWhy(found.explanation);
  showComponents(answer, found.hotspots);
  showAdvice(found.advice, mend);
  byId("details").hidden = false;
  if (found.hotspots) code.showHotspots(found.hotspots, { isCuda, ptx: found.ptx, isNew: last === null });
  else code.clear();
  if (found.problem) byId("code-note").textContent = found.problem.message;
  stale(false);
}

/** Hotspots, advice and explanation of a prediction, each null where there is none. */
async function aboutIt(answer, text, signal) {
  const path = `/predictions/${answer.id}`;
  const isKernel = answer.kernel !== null;
  const orProblem = (asked) => asked.catch((error) => {
    if (error.name === "AbortError") throw error;
    return error;
  });
  const [hotspots, ptx, advice, explanation] = await Promise.all([
    isKernel && orProblem(get(`${path}/hotspots?rows=${HOT_ROWS}`, signal)),
    text ?? (isKernel ? get(`${path}/request`, signal).then((found) => found.request.ptx) : ""),
    isKernel && orProblem(get(`${path}/advice`, signal)),
    (answer.power || answer.time) && orProblem(askedWhy(answer.id, signal)),
  ]);
  const known = (found) => (found instanceof Error || !found ? null : found);
  return { hotspots: known(hotspots), ptx, advice: known(advice), explanation, problem: hotspots instanceof Error && hotspots };
}

function showNumbers(answer, link) {
  const hash = isOpen() ? "" : location.hash;
  history.replaceState(null, "", `${link}${hash}`);
  byId("answer").hidden = false;
  const name = answer.kernel?.demangled ?? answer.operator?.asked.name ?? "Measured work";
  byId("result-title").textContent = `${name} on ${answer.gpu}`;
  byId("share").value = new URL(link, location.href).href;
  byId("result-sub").textContent =
    `${plain(answer.clocks.core_mhz, 4)} MHz core, ${plain(answer.clocks.memory_mhz, 4)} MHz memory`
    + (answer.model ? ` · power: ${answer.model.family}, version ${answer.model.version}` : "")
    + (answer.time_model ? ` · time: ${answer.time_model.family}` : "");
  show(byId("needs"), needsBox(answer.needs));
  show(byId("numbers"), estimates("number", answer, { isBrief: true }));
  byId("number-energy").querySelector(".value").after(change(answer) ?? "");
  for (const id of ["energy-total", "source-energy"])
    show(byId(id), el("b", {}, joules(answer.energy?.joules)), " ", change(answer));
  show(byId("facts"), trustLine(answer.trust), facts(factsOf(answer)));
  show(byId("warnings"), warningsBox(answer.warnings));
  kernel.showLoops(answer.trip_counts);
  showSpeed(answer);
  byId("answer").classList.remove("stale");
  announce(`Predicted: ${joules(answer.energy?.joules)}, ${seconds(answer.time?.seconds)}, `
    + `${watts(answer.power?.watts)}`);
}

/** How the energy differs from that of the last state: "−12 %". */
function change(answer) {
  const now = answer.energy?.joules;
  if (!now || last === null) return null;
  const told = (from) => {
    const share = now / from - 1;
    return Math.abs(share) < SAME ? "no change" : signed(100 * share);
  };
  const kind = Math.abs(now / last - 1) < SAME ? "" : now < last ? "good" : "bad-text";
  const whole = told(first);
  return el("span", { class: "change" }, el("span", { class: kind, title: "against the last state" }, told(last)),
    whole === told(last) ? null : el("span", { class: "hint" }, ` ${whole} since opened`));
}

function factsOf(answer) {
  const { time_model: model, occupancy, registers, compiled } = answer;
  const held = ({ value, low, high, how }) => `${value} a thread${low < high ? `, between ${low} and ${high}` : ""} (${how})`;
  return [
    (model?.bound || model?.regime) && ["Bound by", model.bound ?? model.regime],
    occupancy && ["Occupancy", `${percent(occupancy.occupancy)}, limited by ${occupancy.limiter}`],
    registers && ["Registers", held(registers)],
    ...answer.trip_counts.slice(0, 8).map((one) => [`Loop ${one.loop ?? one.line}`, `${plain(one.trips)} trips (${one.how})`]),
    compiled && ["Compiled by", `${compiled.compiler} for ${(compiled.target / 10).toFixed(1)}`],
  ].filter(Boolean);
}

/** Another explanation of the same answer; a solved example is asked about first. */
async function explainAgain() {
  const [target, method] = [byId("explain-target").value, byId("explain-method").value];
  try {
    if (!current.id) await ask();
    if (!current.id) return;
    const { id } = current;
    [byId("explain-target").value, byId("explain-method").value] = [target, method];
    const found = await askedWhy(id);
    if (current.id === id) showWhy(found);
  } catch (error) {
    showWhy(error);
  }
}

export function start() {
  byId("kernel-form").addEventListener("submit", (event) => {
    event.preventDefault();
    say(byId("kernel-error"), "");
    ask({ byHand: true });
  });
  byId("explain-target").addEventListener("change", explainAgain);
  byId("explain-method").addEventListener("change", explainAgain);
  byId("copy").addEventListener("click", () => copyField(byId("share"), byId("copy"), "The link"));
  whenOpened("predict", () => isStale && changed());
  byId("examples").addEventListener("click", (event) => {
    const { example } = event.target.closest("[data-example]")?.dataset ?? {};
    if (example) pickExample(example).catch(kernel.complain);
  });
  code.start();
}

/** What the form tells: of its changes, of Ctrl-Enter, and of the lines pointed at. */
export const told = { changed, entered: () => byId("kernel-form").requestSubmit(), ...code.told };
