// The same launch on several GPUs: asked as code against itself, of which nothing is stored.

import { post } from "./api.js";
import { estimated } from "./cards.js";
import { logarithmic } from "./charts.js";
import { QUANTITIES, action, announce, button, byId, colour, el, heads, show, table, words } from "./dom.js";
import { submits, telling } from "./forms.js";
import { chosenGpus } from "./gpus.js";
import * as kernel from "./kernel.js";
import { draw, energyAgainstTime } from "./plot.js";
import { whenOpened } from "./tabs.js";

/** {gpu, energy, time, power, why} of each board; `why` it is not ranked, if it is not. */
let found = [];

async function compare() {
  const gpus = chosenGpus(byId("compare-gpus"));
  if (!gpus.length) throw new Error("Choose GPUs first.");
  const { gpu: _, details: __, ptx, cuda, ...asked } = kernel.predictRequest();
  const code = ptx === undefined ? { cuda } : { ptx };
  const { comparisons, apart } = await post("/compare", { model: "auto", ...asked, old: code, new: code, gpus });
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

function showTable() {
  const by = byId("compare-sort").value;
  const valueOf = (one) => one[by][QUANTITIES[by][1]];
  const rows = found.slice().sort((a, b) => Boolean(a.why) - Boolean(b.why) || valueOf(a) - valueOf(b));
  const columns = Object.entries(QUANTITIES).map(([name, as]) => {
    const at = logarithmic(Math.min(...rows.map((one) => one[name].low)), Math.max(...rows.map((one) => one[name].high)));
    return { title: as[0], of: (one) => el("div", { class: "cell" }, estimated(one[name], as, at)) };
  });
  show(byId("compare-table"), table(`Sorted by ${by}, what cannot be compared last; intervals of 90 %`, [
    ...heads({ GPU: "gpu" }), ...columns, ...words({ "Not ranked": "why" }),
    action((one) => button("Use", () => kernel.change({ gpu: one.gpu }), one.gpu)),
  ], rows));
}

export function start() {
  submits("compare", compare);
  byId("compare-sort").addEventListener("change", () => found.length && showTable());
  whenOpened("compare", () => found.length || telling("compare", compare));
}
