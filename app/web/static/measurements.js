// Uploads of measurements, checked before they are stored, and retraining on them.

import { follow, get, post, postForm, remove } from "./api.js";
import { announce, byId, colour, el, percent, plain, say, show, table, when } from "./dom.js";
import { takesFiles } from "./box.js";
import { draw } from "./plot.js";
import { whenOpened } from "./tabs.js";

const SHOWN_ROWS = 20;
const PREVIEW_BYTES = 2000;
const PREVIEW_LINES = 5;

let file = null;
let checking = null;
let checked = null;
const chosen = new Set();

function form() {
  const made = new FormData();
  made.append("file", file, file.name);
  for (const [name, id] of [["gpu", "upload-gpu"], ["board", "upload-board"], ["schema", "upload-schema"]])
    if (byId(id).value.trim()) made.append(name, byId(id).value.trim());
  return made;
}

async function choose(given) {
  file = given;
  byId("upload-name").textContent = `${file.name}, ${plain(file.size / 1024)} KiB`;
  byId("upload").disabled = true;
  await check();
}

/** Ask the service what it would take of the file; the latest question counts. A field that is left
 *  by pressing Upload asks too, so the button stays as it is and waits for the answer. */
function check() {
  checked = look();
  return checked;
}

async function look() {
  if (!file) return;
  checking?.abort();
  checking = new AbortController();
  const { signal } = checking;
  say(byId("upload-error"), "");
  byId("upload-busy").textContent = "checking each row";
  try {
    const found = await postForm("/measurements/check", form(), signal);
    show(byId("upload-check"), await preview(), verdict(found));
    byId("upload").disabled = !found.accepted;
  } catch (error) {
    if (error.name === "AbortError") return;
    show(byId("upload-check"), await preview());
    say(byId("upload-error"), error.message);
    byId("upload").disabled = true;
  }
  byId("upload-busy").textContent = "";
}

async function preview() {
  const start = await file.slice(0, PREVIEW_BYTES).text();
  if (start.includes("\u0000") || start.includes("\uFFFD")) return null;
  const lines = start.split(/\r?\n/).slice(0, PREVIEW_LINES);
  return el("div", { class: "code scroll", tabindex: 0, role: "region", "aria-label": "Beginning of the file" },
    el("pre", { class: "preview" }, lines.join("\n")));
}

function verdict(found) {
  const counted = el("p", {},
    el("span", { class: "good" }, `${found.accepted} rows would be taken`), ", ",
    el("span", { class: found.rejected ? "bad-text" : "" }, `${found.rejected} refused`), ".");
  return [counted, found.rejections.length ? rejected(found.rejections) : null];
}

const rejected = (rows) => table(
  rows.length > SHOWN_ROWS ? `The first ${SHOWN_ROWS} reasons` : "Why rows are refused", [
    { title: "Row", num: true, of: (one) => one.row },
    { title: "Column", of: (one) => one.column ?? "" },
    { title: "Reason", class: "wrap", of: (one) => one.reason },
  ], rows.slice(0, SHOWN_ROWS));

async function upload(event) {
  event.preventDefault();
  await checked;
  if (!file || byId("upload").disabled) return;
  say(byId("upload-error"), "");
  byId("upload").disabled = true;
  byId("upload-busy").textContent = "storing";
  try {
    const batch = await postForm("/measurements", form());
    show(byId("upload-check"), el("p", { class: "good", id: "upload-done" },
      `${batch.accepted} rows of ${file.name} are stored.`));
    announce(`${batch.accepted} rows stored`);
    file = null;
    byId("upload-name").textContent = "or drop one here";
    chosen.add(batch.id);
    await listBatches();
  } catch (error) {
    say(byId("upload-error"), error.message);
    byId("upload").disabled = false;
  }
  byId("upload-busy").textContent = "";
}

async function listBatches() {
  say(byId("batches-error"), "");
  try {
    const batches = await get("/measurements?limit=50");
    show(byId("batches"), batches.length ? table("Newest first", [
      {
        title: "For retraining",
        of: (one) => el("input", {
          type: "checkbox", value: one.id, checked: chosen.has(one.id),
          "aria-label": `Retrain on the batch of ${when(one.created)}`,
          onchange: (event) => (event.target.checked ? chosen.add(one.id) : chosen.delete(one.id)),
        }),
      },
      { title: "Stored", head: true, of: (one) => when(one.created) },
      { title: "Rows", num: true, of: (one) => one.accepted },
      { title: "Refused", num: true, of: (one) => one.rejected },
      { title: "Schemas", of: (one) => Object.keys(one.schemas).join(", ") },
      { title: "By", class: "wrap", of: (one) => one.uploaded_by },
      { title: "Actions", hidden: true, of: deleteButton },
    ], batches) : el("p", { class: "hint" }, "Nothing has been uploaded yet."));
  } catch (error) {
    say(byId("batches-error"), error.message);
  }
}

/** Deleting is for good, so the button asks once more. */
function deleteButton(batch) {
  let asked = false;
  const button = el("button", {
    type: "button", class: "plain small",
    onclick: async () => {
      if (!asked) {
        asked = true;
        button.textContent = "Really delete?";
        return;
      }
      try {
        await remove(`/measurements/${batch.id}`);
        chosen.delete(batch.id);
        await listBatches();
      } catch (error) {
        say(byId("batches-error"), error.message);
      }
    },
  }, "Delete");
  return button;
}

function retrainRequest() {
  if (!chosen.size) throw new Error("Choose batches above first.");
  const body = {
    gpu: byId("retrain-gpu").value, mode: byId("retrain-mode").value, batches: [...chosen],
    targets: byId("retrain-targets").value.split(" "),
    promote: byId("retrain-promote").checked,
  };
  if (byId("retrain-board").value.trim()) body.board = byId("retrain-board").value.trim();
  if (byId("retrain-family").value) body.families = [byId("retrain-family").value];
  return body;
}

/** Show what would be done; a button below it does it. */
async function plan(event) {
  event.preventDefault();
  say(byId("retrain-error"), "");
  byId("job").hidden = true;
  byId("retrain").disabled = true;
  byId("retrain-busy").textContent = "looking at each row";
  try {
    const body = retrainRequest();
    const found = await post("/retrain", { ...body, dry_run: true });
    const start = el("button", { type: "button", id: "retrain-start", onclick: () => retrain(body) }, "Start this retraining");
    show(byId("plan"), found.targets.map((one) => planOf(one, found)), el("div", { class: "row" }, start));
    announce("The plan is shown; nothing has started.");
  } catch (error) {
    show(byId("plan"));
    say(byId("retrain-error"), error.message);
  }
  byId("retrain-busy").textContent = "";
  byId("retrain").disabled = false;
}

const MODES = {
  new_gpu: "The physical model is calibrated", continue: "Trees are added", full: "New trees are fitted",
};

function planOf(one, { gpu, board }) {
  const where = `${gpu}${board ? `, board ${board}` : ""}`;
  const left = Object.entries(one.left_out);
  return el("div", { class: "planned" },
    el("h3", {}, `${one.target} of ${where}: ${one.mode ? MODES[one.mode].toLowerCase() : "times are corrected"}`),
    el("p", { class: "wrap" }, `Why: ${one.why}.`),
    el("p", {}, `${one.rows} rows of ${one.kernels.length} kernels train. Each kernel is left out once, in `
      + `${one.folds} folds. Old and new are compared on ${one.judged_kernels} kernels.`),
    one.obstacles.length ? el("div", { class: "notice bad" }, el("p", {}, "With these rows nothing can be promoted:"),
      el("ul", {}, one.obstacles.map((text) => el("li", { class: "wrap" }, text)))) : null,
    one.notes.map((text) => el("p", { class: "hint wrap" }, text)),
    el("details", {}, el("summary", {}, "Rows by kernel"), table("What trains, and in which fold it is left out", [
      { title: "Kernel", head: true, class: "wrap", of: (row) => row.kernel },
      { title: "Rows", num: true, of: (row) => row.rows },
      { title: "Earlier rows", num: true, of: (row) => row.earlier_rows },
      { title: "Fold", num: true, of: (row) => row.fold ?? "" },
      { title: "Known before", of: (row) => (row.known ? "yes" : "") },
    ], one.kernels)),
    left.length ? [table("Rows that do not train", [
      { title: "Reason", head: true, class: "wrap", of: ([why]) => why },
      { title: "Rows", num: true, of: ([, count]) => count },
    ], left), el("details", {}, el("summary", {}, "Which rows"), table("The first of them", [
      { title: "Row", num: true, of: (row) => row.row },
      { title: "Reason", class: "wrap", of: (row) => row.reason },
    ], one.left_out_rows.slice(0, SHOWN_ROWS)))] : el("p", { class: "hint" }, "No row is left out."));
}

async function retrain(body) {
  say(byId("retrain-error"), "");
  show(byId("plan"));
  byId("retrain").disabled = true;
  try {
    const job = await post("/retrain", body, { more: { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) } });
    listJobs();
    await watch(job);
  } catch (error) {
    say(byId("retrain-error"), error.message);
  }
  byId("retrain").disabled = false;
  listJobs();
}

async function watch(job) {
  const bar = el("progress", { id: "job-progress", max: 1, value: 0, "aria-label": "Progress of the retraining" });
  const stage = el("p", { class: "hint", id: "job-stage", role: "status" }, "waiting");
  const cancel = el("button", {
    type: "button", class: "plain small",
    onclick: () => remove(`/jobs/${job.id}`).catch((error) => say(byId("retrain-error"), error.message)),
  }, "Cancel");
  const box = byId("job");
  box.hidden = false;
  show(box, bar, stage, cancel);
  const ended = await follow(job.id, ({ state, stage: name, progress, detail }) => {
    bar.value = progress;
    stage.textContent = [state, name, percent(progress, 2), detail].filter(Boolean).join(" · ");
  });
  show(box, outcome(ended, "job-done"));
  announce(`The retraining is ${ended.state}`);
}

const stateOf = (job) => (job.state !== "done" ? job.state
  : [job.result, ...(job.result.also ?? [])].map((one) => `${one.target} ${one.promoted ? "promoted" : "not promoted"}`).join(", "));
const whyOf = (job) => (job.state === "failed" ? job.error?.detail ?? ""
  : [job.result, ...(job.result?.also ?? [])].flatMap((one) => one?.verdict.reasons ?? []).join("; "));

/** Retrainings of before with what became of them. */
async function listJobs() {
  say(byId("jobs-error"), "");
  try {
    const jobs = await get("/jobs?limit=20");
    show(byId("jobs"), jobs.length ? table("Newest first", [
      { title: "Started", head: true, of: (job) => when(job.created) },
      { title: "GPU", of: (job) => job.request.gpu },
      { title: "Board", class: "wrap", of: (job) => job.result?.board ?? job.request.board ?? "" },
      { title: "Mode", of: (job) => job.result?.mode ?? job.request.mode },
      { title: "Verdict", class: "wrap", of: (job) => el("span", { class: job.result?.promoted ? "good" : null }, stateOf(job)) },
      { title: "Why", class: "wrap", of: whyOf },
      {
        title: "Action", hidden: true,
        of: (job) => (job.state === "done" ? jobButton("Show", job, () => showJob(job.id))
          : ["queued", "running"].includes(job.state) ? jobButton("Watch", job, () => watch(job).then(listJobs)) : ""),
      },
    ], jobs) : el("p", { class: "hint" }, "Nothing has been retrained yet."));
  } catch (error) {
    say(byId("jobs-error"), error.message);
  }
}

const jobButton = (title, job, onclick) => el("button", { type: "button", class: "plain small", onclick },
  title, el("span", { class: "visually-hidden" }, ` the retraining of ${when(job.created)}`));

async function showJob(id) {
  try {
    show(byId("past-job"), outcome(await get(`/jobs/${id}`), "past-done"));
    announce("The retraining is shown below the list.");
  } catch (error) {
    say(byId("jobs-error"), error.message);
  }
}

function outcome(job, id) {
  if (job.state !== "done") return el("p", { class: "error" },
    job.state === "failed" ? `It failed: ${job.error?.detail ?? "no reason is known"}` : "It was cancelled.");
  return el("div", { id }, [job.result, ...(job.result.also ?? [])].map(ofTarget));
}

/** Whether the candidate of one target serves now, and why if it does not. */
function ofTarget({ candidate, verdict, promoted, gpu, board, target, scores: found, held_out: rows = [] }) {
  const name = `${candidate.family}, version ${candidate.version},`;
  const where = `${gpu}${board ? `, board ${board}` : ""}`;
  return el("div", {},
    el("p", {}, promoted
      ? el("span", { class: "good" }, `${name} serves now for the ${target} of ${where}.`)
      : `${name} is a candidate for the ${target} of ${where}; it does not serve. It can be promoted under Models.`),
    verdict.reasons?.length ? el("ul", {}, verdict.reasons.map((reason) => el("li", { class: "wrap" }, reason))) : null,
    rows.length ? heldOut(rows, target) : null,
    target === "power" ? scores(found) : timeScores(found));
}

/** Old and new against what was measured, on kernels that were left out: a picture and a table. */
function heldOut(rows, target) {
  const [word, unit] = target === "power" ? ["power", "W"] : ["time", "s"];
  const figure = el("div", { class: "figure" });
  const measured = rows.map((row) => row.measured);
  const ends = [Math.min(...measured), Math.max(...measured)];
  const points = (name, symbol, shade, of) => ({
    type: "scatter", mode: "markers", name, x: measured, y: rows.map(of), text: rows.map((row) => row.kernel),
    hovertemplate: `%{text}<br>measured %{x:.4g} ${unit}, ${name} %{y:.4g} ${unit}<extra></extra>`,
    marker: { color: colour(shade), size: 8, symbol },
  });
  setTimeout(() => draw(figure, () => ({
    title: `Predicted against measured ${word} of kernels left out, old and new; the table below says the same by kernel`,
    data: [
      { type: "scatter", mode: "lines", name: "as measured", x: ends, y: ends, hoverinfo: "skip", line: { color: colour("control"), dash: "dot" } },
      points("old", "x-thin-open", "bar-up", (row) => row.old),
      points("new", "circle-open", "bar", (row) => row.new),
    ],
    layout: {
      xaxis: { title: { text: `Measured ${word}, ${unit}` }, type: "log", nticks: 8 },
      yaxis: { title: { text: `Predicted ${word}, ${unit}` }, type: "log", nticks: 8 },
    },
  })));
  const kernels = [...new Set(rows.map((row) => row.kernel))].map((kernel) => {
    const own = rows.filter((row) => row.kernel === kernel);
    const error = (name) => (own.some((row) => row[name] === null) ? null
      : own.reduce((sum, row) => sum + Math.abs(row[name] / row.measured - 1), 0) / own.length);
    return { kernel, launches: own.length, old: error("old"), new: error("new") };
  });
  const told = (value) => (value === null ? "unknown" : percent(value, 2));
  return el("div", { class: "held-out" }, el("h3", {}, "Old and new on kernels left out"), figure,
    el("details", {}, el("summary", {}, "Error by kernel"), table("Mean error of launches whose kernel was not in training", [
      { title: "Kernel", head: true, class: "wrap", of: (one) => one.kernel },
      { title: "Launches", num: true, of: (one) => one.launches },
      { title: "Old", num: true, of: (one) => told(one.old) },
      { title: "New", num: true, of: (one) => told(one.new) },
    ], kernels)));
}

/** Scores on seen and unseen kernels beside those of no information. */
export function scores(rows) {
  const of = (part, name) => (one) => {
    const found = one[part]?.[name];
    return found ? `${plain(found.mean)} ± ${plain(found.std, 2)}` : "";
  };
  return table("Error and fit, beside the median power as the answer to everything", [
    { title: "Kernels", head: true, of: (one) => (one.protocol === "grouped" ? "not seen" : "seen") },
    { title: "Rows", of: (one) => one.table.replaceAll("_", " ") },
    { title: "MAE, W", num: true, of: of("model", "mae_watts") },
    { title: "Baseline", num: true, of: of("baseline", "mae_watts") },
    { title: "R²", num: true, of: of("model", "r2") },
    { title: "Baseline", num: true, of: of("baseline", "r2") },
  ], rows.filter((one) => ["grouped", "random"].includes(one.protocol)));
}

/** The same of times, beside the default model as it is and the median time. */
export function timeScores(rows) {
  const of = (scored) => {
    const found = scored?.median_ape_percent;
    return found ? plain(found.mean) : "";
  };
  return table("Half of the launches are nearer than this", [
    { title: "Kernels", head: true, of: (one) => (one.protocol === "program" ? "not seen" : "seen") },
    { title: "Error, %", num: true, of: (one) => of(one.model) },
    { title: "Uncorrected", num: true, of: (one) => of(one.others["default time model"]) },
    { title: "Median time", num: true, of: (one) => of(one.others["median time"]) },
  ], rows);
}

async function fillSchemas() {
  const field = byId("upload-schema");
  if (field.options.length > 1) return;
  const found = await get("/schemas").catch(() => []);
  field.append(...found.map((schema) => el("option", { value: schema.id }, `features of ${schema.id}`)));
}

export function start() {
  byId("upload-file").addEventListener("change", (event) => {
    if (event.target.files.length) choose(event.target.files[0]);
    event.target.value = "";
  });
  takesFiles(byId("upload-drop"), choose);
  for (const id of ["upload-gpu", "upload-board", "upload-schema"]) byId(id).addEventListener("change", check);
  byId("upload-form").addEventListener("submit", upload);
  byId("retrain-form").addEventListener("submit", plan);
  byId("retrain-form").addEventListener("change", () => show(byId("plan")));
  whenOpened("measurements", () => {
    fillSchemas();
    listBatches();
    listJobs();
  });
}
