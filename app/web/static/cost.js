// What an application of several kernels costs: energy, and price and CO2 at rates that are given.

import { post } from "./api.js";
import { kernelsIn } from "./box.js";
import { bar, estimate, rates, table, warningsBox } from "./cards.js";
import {
  action, announce, button, byId, cells, dimensions, el, joules, names, numbers, percent, plain, seconds, show,
} from "./dom.js";
import { members, pick, submits, telling } from "./forms.js";
import * as kernel from "./kernel.js";
import { openPrediction } from "./predict.js";

/** {name, request, launches} for each kernel of the application. */
let added = [];

function add() {
  const request = kernel.request();
  const name = request.kernel ?? kernelsIn(kernel.sourceText(), kernel.language())[0] ?? "the only kernel";
  added.push({ name, request, launches: "1" });
  showList();
  announce(`${name} is added.`);
  byId("cost-list").querySelector("tbody tr:last-child input").select();
}

function showList() {
  show(byId("cost-list"), added.length ? table("Kernels of the application", [
    ...names({ Kernel: "name" }), ...cells({ "Grid x block": (one) => launchOf(one.request) }),
    {
      title: "Launches",
      of: (one) => el("input", {
        type: "number", min: 1, step: 1, required: true, value: one.launches, class: "count",
        "aria-label": `Launches of ${one.name}, ${launchOf(one.request)}`,
        oninput: (event) => (one.launches = event.target.value),
      }),
    },
    action((one) => button("Remove", () => remove(one), `${one.name}, ${launchOf(one.request)}`)),
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
  return { gpu: kernel.gpu(), ...shared(), ...pick(kernel.operating(), "clocks"), ...kernel.models(), ...members(byId("cost-form")) };
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

async function compute() {
  const found = await post("/cost", costRequest());
  byId("cost-result").hidden = false;
  showResult(found);
  announce(`Computed: ${joules(found.energy.joules)}`);
}

const duration = (value) => (value >= 3600 ? `${plain(value / 3600)} h`
  : value >= 60 ? `${plain(value / 60)} min` : seconds(value));
const share = (value) => (value > 0 && value < 1e-3 ? "below 0.1 %" : percent(value));

function showResult(found) {
  const launches = found.kernels.reduce((sum, one) => sum + one.launches, 0);
  byId("cost-title").textContent = `${launches.toLocaleString()} ${launches === 1 ? "launch" : "launches"} on ${found.gpu}`;
  show(byId("cost-numbers"),
    estimate("cost-energy", `Energy, ${plain(found.kwh, 4)} kWh`, found.energy, "joules", joules),
    estimate("cost-time", "Time", found.time, "seconds", duration),
    rates(found, "cost-amount", "cost-co2"));
  show(byId("cost-table"), table("By kernel, in the order added", [
    ...names({ Kernel: (one) => one.kernel.demangled }),
    ...numbers({
      Launches: (one) => one.launches.toLocaleString(), Each: (one) => joules(one.energy.joules),
      Together: (one) => joules(one.joules), Time: (one) => duration(one.seconds),
    }),
    { title: "Share of energy", of: (one) => [share(one.energy_share), bar(0, one.energy_share)] },
    action((one) => button("Open", () => openPrediction(one.prediction_id), `the prediction for ${one.kernel.demangled}`)),
  ], found.kernels));
  show(byId("cost-warnings"), warningsBox(found.warnings));
}

export function start() {
  showList();
  byId("cost-add").addEventListener("click", () => telling("cost", add, null));
  submits("cost", compute);
}
