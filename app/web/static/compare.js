// The same launch on several GPUs.

import { post } from "./api.js";
import { interval, logarithmic } from "./charts.js";
import { announce, byId, el, joules, say, seconds, show, table, watts } from "./dom.js";
import { gpuChecks } from "./gpus.js";
import * as kernel from "./kernel.js";
import { openPrediction } from "./predict.js";

const PARTS = { energy: ["Energy", "joules", joules], time: ["Time", "seconds", seconds], power: ["Power", "watts", watts] };

let found = [];
let apart = [];

async function compare(event) {
  event.preventDefault();
  say(byId("compare-error"), "");
  byId("compare-busy").textContent = "computing";
  try {
    const chosen = gpuChecks(byId("compare-gpus"));
    if (!chosen.length) throw new Error("Choose GPUs first.");
    ({ predictions: found, apart = [] } = await post("/predict", kernel.predictRequest(chosen)));
    byId("compare-result").hidden = false;
    showTable();
    announce(`${found.length} GPUs compared`);
  } catch (error) {
    say(byId("compare-error"), error.message);
  } finally {
    byId("compare-busy").textContent = "";
  }
}

function showTable() {
  const by = byId("compare-sort").value;
  const valueOf = (answer) => answer[by]?.[PARTS[by][1]] ?? Infinity;
  const why = new Map(apart.map((one) => [one.gpu, one.why]));
  const aside = (answer) => Number(why.has(answer.gpu));
  const rows = found.slice().sort((a, b) => aside(a) - aside(b) || valueOf(a) - valueOf(b));
  const columns = Object.entries(PARTS).map(([name, [title, unit, format]]) => {
    const known = rows.map((answer) => answer[name]).filter(Boolean);
    const at = logarithmic(Math.min(...known.map((one) => one.low)), Math.max(...known.map((one) => one.high)));
    return {
      title,
      of: (answer) => {
        const one = answer[name];
        if (!one) return "unknown";
        return el("div", { class: "cell" },
          el("b", {}, format(one[unit])), " ",
          el("span", { class: "hint range-text" }, `${format(one.low)} to ${format(one.high)}`),
          interval(at(one.low), at(one[unit]), at(one.high)));
      },
    };
  });
  show(byId("compare-table"), table(`Sorted by ${by}, what cannot be compared last; intervals of 90 %`, [
    { title: "GPU", head: true, of: (answer) => answer.gpu },
    ...columns,
    { title: "Power rests on", of: (answer) => (answer.power?.basis ?? "").replace("_", " ") },
    {
      title: "Trust",
      of: (answer) => why.has(answer.gpu) ? `Not ranked: ${why.get(answer.gpu)}` : (answer.trust?.mark ?? ""),
    },
    {
      title: "Action", hidden: true,
      of: (answer) => el("button", { type: "button", class: "plain small", onclick: () => openPrediction(answer.id) },
        "Open", el("span", { class: "visually-hidden" }, ` the prediction for ${answer.gpu}`)),
    },
  ], rows));
}

export function start() {
  byId("compare-form").addEventListener("submit", compare);
  byId("compare-sort").addEventListener("change", () => found.length && showTable());
}
