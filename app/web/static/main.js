// Starts the page: every view wires itself, then GPUs are listed and the address is followed.

import * as accuracy from "./accuracy.js";
import * as application from "./application.js";
import * as clocks from "./clocks.js";
import * as compare from "./compare.js";
import * as cost from "./cost.js";
import * as diff from "./diff.js";
import { byId } from "./dom.js";
import * as examples from "./examples.js";
import { fillChips, fillGpus, gpus, searchable } from "./gpus.js";
import * as past from "./history.js";
import * as kernel from "./kernel.js";
import * as keys from "./keys.js";
import * as measurements from "./measurements.js";
import * as models from "./models.js";
import * as operators from "./operators.js";
import * as predict from "./predict.js";
import * as sweep from "./sweep.js";
import * as tabs from "./tabs.js";
import * as tune from "./tune.js";

const FIRST_GPU = "tesla-v100";
/** Boards that many have: six of data centres, four of desks. */
const COMPARED = [
  "t4", "tesla-v100", "a100-sxm4-80gb", "l4", "l40s", "h100-sxm5", "rtx-a6000", "gtx-1080-ti", "rtx-4090", "rtx-5090",
];

async function fill() {
  const id = new URLSearchParams(location.search).get("prediction");
  const example = id ? null : examples.openFirst().catch(kernel.complain);
  let found;
  try {
    found = await gpus();
  } catch (error) {
    kernel.complain(error);
    return;
  }
  fillGpus(byId("gpu"), found, (await example) ?? FIRST_GPU);
  searchable(byId("gpu-search"), byId("gpu"), found);
  fillChips(byId("compare-gpus"), found, COMPARED);
  for (const name of ["sweep", "diff"]) fillChips(byId(`${name}-gpus`), found);
  for (const name of ["application", "upload", "retrain"]) fillGpus(byId(`${name}-gpu`), found);
  models.fill(found, FIRST_GPU);
  if (id) await predict.openPrediction(id);
  document.documentElement.dataset.ready = "true";
}

kernel.start(predict.told);
for (const view of [predict, examples, sweep, clocks, tune, compare, diff, cost, application, operators, past, accuracy, measurements, models]) view.start();
keys.start(() => {
  kernel.complain({ message: "" });
  fill();
});
tabs.start();
fill();
