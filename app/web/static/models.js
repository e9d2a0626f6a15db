// Which model serves, how good each version is, and changing it.

import { get, post } from "./api.js";
import { announce, byId, el, plain, say, show, table, when } from "./dom.js";
import { fillGpus } from "./gpus.js";
import { scores, timeScores } from "./measurements.js";
import { whenOpened } from "./tabs.js";

const target = () => byId("models-target").value;
const path = () => `/models/${encodeURIComponent(byId("models-gpu").value)}/${target()}`;
const nameOf = (one) => `${one.family}, version ${one.version} (${one.source})`;
const isSame = (a, b) => a && b && a.card === b.card;

// GPUs that came with a power model; others may have retrained ones.
let packaged = new Set();

/** Which GPUs there are. */
export function fill(gpus, first) {
  packaged = new Set(gpus.filter((gpu) => gpu.power_models.length).map((gpu) => gpu.id));
  fillGpus(byId("models-gpu"), gpus, first);
}

async function load() {
  const [gpu, asked] = [byId("models-gpu").value, path()];
  if (!gpu) return;
  say(byId("models-error"), "");
  try {
    const registry = await get(`${asked}/registry`);
    const any = registry.versions.length || (target() === "power" && packaged.has(gpu));
    const cards = any ? await get(asked) : [];
    if (asked === path()) showAll(cards, registry);
  } catch (error) {
    say(byId("models-error"), error.message);
  }
}

/** Versions of the registry and packaged cards, each once, with who serves. */
function showAll(cards, registry) {
  const versions = new Map();
  for (const card of cards) {
    const name = `${card.family}-${card.feature_schema.id}-${card.source}/${card.version}`;
    versions.set(`${path()}/${name}`, {
      card: `${path()}/${name}`, family: card.family, version: card.version, source: card.source,
      schema: card.feature_schema.id, created: card.created, origin: "packaged", board: "", promoted: null,
      reasons: [], scores: card.scores, rows: card.training.rows,
    });
  }
  for (const one of registry.versions) versions.set(one.card, { ...versions.get(one.card), ...one });
  const places = registry.places.filter((place) => place.champion);
  const general = places.find((place) => place.board === "");
  show(byId("serving"), el("p", {}, general
    ? ["Serving: ", el("b", { id: "champion" }, nameOf(general.champion)), ". ", rollbackButton("")]
    : ["Serving: ", el("b", { id: "champion" },
      registry.default ? `the packaged default, ${nameOf(registry.default)}`
        : target() === "power" ? "the packaged default" : "the default time model, uncorrected"), "."]),
  places.filter((place) => place.board).map((place) => el("p", { class: "wrap" },
    `For board ${place.board}: ${nameOf(place.champion)}. `, rollbackButton(place.board))));
  byId("serving").append(...registry.observed.map((one) => el("p", { class: "wrap" },
    `${one.inside} of ${one.kernels} kernels measured${one.board ? ` on board ${one.board}` : ""} after they were predicted lay in `
    + `the intervals of ${one.model} (promised: ${100 * one.promised} %)${one.widened > 1
      ? `; answers are ${plain(one.widened)} times as wide until it is retrained` : ""}.`)));
  const rows = [...versions.values()];
  if (!rows.length) {
    show(byId("versions"), el("p", { class: "hint" }, `No ${target()} model of this GPU has been trained.`));
    show(byId("promotions"), el("p", { class: "hint" }, NONE_PROMOTED));
    return;
  }
  const isServing = (one) => places.some((place) => isSame(place.champion, one));
  const served = (board) => places.find((place) => place.board === board)?.champion ?? general?.champion ?? registry.default;
  show(byId("versions"), table("Error on kernels not seen, beside that of no information", [
    { title: "Model", head: true, of: (one) => nameOf(one) },
    { title: "Board", class: "wrap", of: (one) => one.board },
    { title: "Schema", of: (one) => one.schema },
    { title: "Made", of: (one) => when(one.created) },
    { title: "Rows", num: true, of: (one) => one.rows ?? "" },
    ...ERRORS[target()],
    { title: "State", class: "wrap", of: (one) => stateOf(one, registry, isServing(one)) },
    { title: "Action", hidden: true, of: (one) => (isServing(one) || (one.family === "physical" && one.source !== "uploads") ? "" : promoteButton(one, versions.get(served(one.board ?? "")?.card))) },
  ], rows, { chosen: isServing }),
  rows.filter((one) => one.scores?.length).map((one) => el("details", {},
    el("summary", {}, `Scores of ${nameOf(one)}`), target() === "power" ? scores(one.scores) : timeScores(one.scores))));
  show(byId("promotions"), registry.promotions.length ? table("Newest first, also those undone since", [
    { title: "When", head: true, of: (one) => when(one.at) },
    { title: "Model", of: (one) => nameOf(one.version) },
    { title: "Board", class: "wrap", of: (one) => one.board },
    { title: "By", class: "wrap", of: (one) => one.actor },
    { title: "Why", class: "wrap", of: (one) => one.why },
  ], registry.promotions) : el("p", { class: "hint" }, NONE_PROMOTED));
}

function score(one, protocol, of) {
  const found = (one.scores ?? []).filter((row) => row.protocol === protocol).at(-1);
  const spread = found && of(found);
  return spread ? plain(spread.mean) : "";
}

const watts = (part) => (one) => score(one, "grouped", (row) => row[part].mae_watts);
const percent = (of) => (one) => score(one, "program", (row) => of(row)?.median_ape_percent);
/** Columns of the error on kernels not seen: of watts the mean, of times the median. */
const ERRORS = {
  power: [
    { title: "MAE, W", num: true, of: watts("model") },
    { title: "Baseline", num: true, of: watts("baseline") },
  ],
  time: [
    { title: "Error, %", num: true, of: percent((row) => row.model) },
    { title: "Uncorrected", num: true, of: percent((row) => row.others["default time model"]) },
    { title: "Baseline", num: true, of: percent((row) => row.others["median time"]) },
  ],
};
const NONE_PROMOTED = "No such model of this GPU has been promoted.";

function stateOf(one, registry, isServing) {
  if (isServing) return el("span", { class: "good" }, "serves");
  if (registry.places.some((place) => isSame(place.candidate, one))) return "candidate";
  return one.reasons.length ? `${one.origin}; ${one.reasons.join("; ")}` : one.origin;
}

function promoteButton(one, serving) {
  return el("button", { type: "button", class: "plain small", onclick: () => askFirst(one, serving) },
    "Promote", el("span", { class: "visually-hidden" }, ` ${nameOf(one)}`));
}

/** Ask before a model serves, with its errors beside those of the one that it replaces. */
function askFirst(one, serving) {
  const errors = ERRORS[target()];
  const [now, then] = [serving, one].map((each) => Number(each && errors[0].of(each)) || null);
  const refused = el("p", { class: "error", role: "alert", hidden: true });
  const promote = async () => {
    const body = { family: one.family, schema: one.schema, source: one.source, version: one.version, board: one.board ?? "", why: "on the page" };
    if (await act("promote", body, `${nameOf(one)} serves now.`, refused)) dialog.close();
  };
  const dialog = el("dialog", { "aria-labelledby": "promote-title", onclose: () => dialog.remove() },
    el("h2", { id: "promote-title" }, `Let ${nameOf(one)} serve?`),
    table("Error on kernels not seen", [
      { title: "", head: true, of: ([role]) => role },
      { title: "Model", class: "wrap", of: ([, each]) => (each ? nameOf(each) : "the packaged default") },
      ...errors.map((column) => ({ ...column, of: ([, each]) => (each && column.of(each)) || "not measured" })),
    ], [["Serves now", serving], ["Would serve", one]]),
    now && then > now ? el("p", { class: "bad-text" }, "Its error is larger than that of the model that serves now.") : null,
    one.reasons.map((reason) => el("p", { class: "wrap" }, `${reason}.`)),
    el("div", { class: "row" }, el("button", { type: "button", id: "promote", onclick: promote }, "Promote"),
      el("button", { type: "button", class: "plain", autofocus: true, onclick: () => dialog.close() }, "Cancel")), refused);
  byId("view-models").append(dialog);
  dialog.showModal();
}

function rollbackButton(board) {
  return el("button", {
    type: "button", class: "plain small",
    onclick: () => act("rollback", { board, why: "on the page" }, "The model before serves again."),
  }, "Roll back", board ? el("span", { class: "visually-hidden" }, ` board ${board}`) : null);
}

async function act(what, body, told, refused = byId("models-error")) {
  say(refused, "");
  try {
    await post(`${path()}/${what}`, body);
    announce(told);
    await load();
    return true;
  } catch (error) {
    say(refused, error.message);
    return false;
  }
}

export function start() {
  for (const id of ["models-gpu", "models-target"]) byId(id).addEventListener("change", load);
  whenOpened("models", load);
}
