// Starts the page: the address is followed and the first example shown, then every view wires itself.

import * as accuracy from "./accuracy.js";
import { key, onKeyNeeded } from "./api.js";
import * as application from "./application.js";
import * as clocks from "./clocks.js";
import * as cost from "./cost.js";
import * as diff from "./diff.js";
import { byId, painted, say } from "./dom.js";
import { fillChips, fillGpus, gpus, searchable } from "./gpus.js";
import * as past from "./history.js";
import * as kernel from "./kernel.js";
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

/** The field for an API key, shown where the service asks for one; `again()` once there is one. */
function askForKeys(again) {
  const form = byId("key-form");
  const field = byId("key");
  const open = (why) => {
    form.hidden = false;
    say(byId("key-error"), why);
    field.focus();
  };
  const keep = (value) => {
    key.set(value);
    field.value = "";
    form.hidden = true;
  };
  onKeyNeeded(open);
  byId("key-open").addEventListener("click", () => (form.hidden ? open("") : (form.hidden = true)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keep(field.value.trim());
    say(byId("key-error"), "");
    again();
  });
  byId("key-forget").addEventListener("click", () => keep(""));
}

const later = [sweep, clocks, tune, diff, cost, application, operators, past, accuracy, measurements, models];

async function fill() {
  const id = new URLSearchParams(location.search).get("prediction");
  const asked = gpus();
  asked.catch(() => {});  // told below
  const example = id ? null : await predict.openFirst().catch(kernel.complain);  // what is looked at comes first
  await painted();
  if (later.length) {
    for (const view of later.splice(0)) view.start();
    tabs.fill();
  }
  let found;
  try {
    found = await asked;
  } catch (error) {
    kernel.complain(error);
    return;
  }
  fillGpus(byId("gpu"), found, example ?? FIRST_GPU);
  searchable(byId("gpu-search"), byId("gpu"), found);
  fillChips(byId("compare-gpus"), found, COMPARED);
  for (const name of ["sweep", "diff"]) fillChips(byId(`${name}-gpus`), found);
  for (const name of ["application", "upload", "retrain"]) fillGpus(byId(`${name}-gpu`), found);
  models.fill(found, FIRST_GPU);
  if (id) await predict.openPrediction(id);
  document.documentElement.dataset.ready = "true";
}

kernel.start(predict.told);
predict.start();
askForKeys(() => {
  kernel.complain({ message: "" });
  fill();
});
tabs.start();
fill();
