// What an application of several kernels costs: energy, and price and CO2 at rates that are given.

import { post } from "./api.js";
import { card, estimate, warningsBox } from "./cards.js";
import { bar } from "./charts.js";
import { announce, asking, byId, dimensions, el, joules, percent, plain, quantity, say, seconds, show, table } from "./dom.js";
import * as kernel from "./kernel.js";
import { openPrediction } from "./predict.js";
import { kernelsIn } from "./source.js";

/** {name, request, launches} for each kernel of the application. */
let added = [];

function add() {
  say(byId("cost-error"), "");
  try {
    const request = kernel.request();
    const name = request.kernel ?? kernelsIn(kernel.sourceText(), kernel.language())[0] ?? "the only kernel";
    added.push({ name, request, launches: "1" });
    showList();
    announce(`${name} is added.`);
    byId("cost-list").querySelector("tbody tr:last-child input").select();
  } catch (error) {
    say(byId("cost-error"), error.message);
  }
}

function showList() {
  show(byId("cost-list"), added.length ? table("Kernels of the application", [
    { title: "Kernel", head: true, class: "wrap", of: (one) => one.name },
    { title: "Grid x block", of: (one) => launchOf(one.request) },
    {
      title: "Launches",
      of: (one) => el("input", {
        type: "number", min: 1, step: 1, required: true, value: one.launches, class: "count",
        "aria-label": `Launches of ${one.name}, ${launchOf(one.request)}`,
        oninput: (event) => (one.launches = event.target.value),
      }),
    },
    {
      title: "Action", hidden: true,
      of: (one) => el("button", { type: "button", class: "plain small", onclick: () => remove(one) },
        "Remove", el("span", { class: "visually-hidden" }, ` ${one.name}, ${launchOf(one.request)}`)),
    },
  ], added) : el("p", { class: "hint" }, "No kernel is added yet."));
}

const launchOf = ({ launch }) => `${dimensions(launch.grid)} x ${dimensions(launch.block)}`;

function remove(one) {
  added = added.filter((other) => other !== one);
  showList();
  byId("cost-add").focus();
}

function costRequest() {
  if (!added.length) throw new Error("Add a kernel first.");
  const body = { gpu: kernel.gpu(), ...shared() };
  if (kernel.clocks()) body.clocks = kernel.clocks();
  Object.assign(body, kernel.models());
  const [price, currency] = [byId("cost-price").value.trim(), byId("cost-currency").value.trim()];
  if (price && !currency) throw new Error("Say in which currency the tariff is.");
  if (price) body.tariff = { price_per_kwh: Number(price), currency };
  const carbon = byId("cost-carbon").value.trim();
  if (carbon) body.grams_co2_per_kwh = Number(carbon);
  return body;
}

/** The kernels; code that all of them are in is sent once. */
function shared() {
  const kernels = added.map((one) => ({ ...one.request, launches: Number(one.launches) }));
  for (const name of ["ptx", "cuda"]) {
    const text = kernels[0][name];
    if (text === undefined || kernels.some((one) => one[name] !== text)) continue;
    return { [name]: text, kernels: kernels.map(({ [name]: _, ...rest }) => rest) };
  }
  return { kernels };
}

const compute = asking("cost", async () => {
  const found = await post("/cost", costRequest());
  byId("cost-result").hidden = false;
  showResult(found);
  announce(`Computed: ${joules(found.energy.joules)}`);
});

const duration = (value) => (value >= 3600 ? `${plain(value / 3600)} h`
  : value >= 60 ? `${plain(value / 60)} min` : seconds(value));
const share = (value) => (value > 0 && value < 1e-3 ? "below 0.1 %" : percent(value));
const grams = (value) => quantity(value, "g");
const between = (part, format) => el("div", { class: "interval" }, `${format(part.low)} to ${format(part.high)}`);

function showResult(found) {
  const { energy, price, co2 } = found;
  const money = (value) => `${plain(value, 4)} ${price.currency}`;
  const launches = found.kernels.reduce((sum, one) => sum + one.launches, 0);
  byId("cost-title").textContent = `${launches.toLocaleString()} ${launches === 1 ? "launch" : "launches"} on ${found.gpu}`;
  show(byId("cost-numbers"),
    estimate("cost-energy", `Energy, ${plain(found.kwh, 4)} kWh`, energy, "joules", joules),
    estimate("cost-time", "Time", found.time, "seconds", duration),
    price ? card("cost-amount", "Price", money(price.amount), between(price, money))
      : card("cost-amount", "Price", "–", el("p", { class: "hint" }, "Give a price per kWh to see it.")),
    co2 ? card("cost-co2", "CO2", grams(co2.grams), between(co2, grams))
      : card("cost-co2", "CO2", "–", el("p", { class: "hint" }, "Give a carbon intensity to see it.")));
  show(byId("cost-table"), table("By kernel, in the order added", [
    { title: "Kernel", head: true, class: "wrap", of: (one) => one.kernel.demangled },
    { title: "Launches", num: true, of: (one) => one.launches.toLocaleString() },
    { title: "Each", num: true, of: (one) => joules(one.energy.joules) },
    { title: "Together", num: true, of: (one) => joules(one.joules) },
    { title: "Time", num: true, of: (one) => duration(one.seconds) },
    { title: "Share of energy", of: (one) => [share(one.energy_share), bar(0, one.energy_share)] },
    {
      title: "Action", hidden: true,
      of: (one) => el("button", { type: "button", class: "plain small", onclick: () => openPrediction(one.prediction_id) },
        "Open", el("span", { class: "visually-hidden" }, ` the prediction for ${one.kernel.demangled}`)),
    },
  ], found.kernels));
  show(byId("cost-warnings"), warningsBox(found.warnings));
}

export function start() {
  showList();
  byId("cost-add").addEventListener("click", add);
  byId("cost-form").addEventListener("submit", compute);
}
