// Which model serves, how good each version is, and changing it.

import { get, post } from "./api.js";
import { announce, byId, el, plain, say, show, table, when } from "./dom.js";
import { scores } from "./measurements.js";
import { whenOpened } from "./tabs.js";

const path = () => `/models/${encodeURIComponent(byId("models-gpu").value)}/power`;
const nameOf = (one) => `${one.family}, version ${one.version} (${one.source})`;
const isSame = (a, b) => a && b && a.card === b.card;

async function load() {
  const asked = byId("models-gpu").value;
  if (!asked) return;
  say(byId("models-error"), "");
  try {
    const [cards, registry] = await Promise.all([get(path()), get(`${path()}/registry`)]);
    if (asked === byId("models-gpu").value) showAll(cards, registry);
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
    : ["Serving: ", el("b", { id: "champion" }, "the packaged default"), "."]),
  places.filter((place) => place.board).map((place) => el("p", { class: "wrap" },
    `For board ${place.board}: ${nameOf(place.champion)}. `, rollbackButton(place.board))));
  const rows = [...versions.values()];
  const isServing = (one) => places.some((place) => isSame(place.champion, one));
  show(byId("versions"), table("Error on kernels not seen, beside that of no information", [
    { title: "Model", head: true, of: (one) => nameOf(one) },
    { title: "Schema", of: (one) => one.schema },
    { title: "Made", of: (one) => when(one.created) },
    { title: "Rows", num: true, of: (one) => one.rows ?? "" },
    { title: "MAE, W", num: true, of: (one) => score(one, "model") },
    { title: "Baseline", num: true, of: (one) => score(one, "baseline") },
    { title: "State", class: "wrap", of: (one) => stateOf(one, registry, isServing(one)) },
    { title: "Action", hidden: true, of: (one) => (one.family === "physical" || isServing(one) ? "" : promoteButton(one)) },
  ], rows, { chosen: isServing }),
  rows.filter((one) => one.scores?.length).map((one) => el("details", {},
    el("summary", {}, `Scores of ${nameOf(one)}`), scores(one.scores))));
  show(byId("promotions"), registry.promotions.length ? table("Newest first, also those undone since", [
    { title: "When", head: true, of: (one) => when(one.at) },
    { title: "Model", of: (one) => nameOf(one.version) },
    { title: "Board", class: "wrap", of: (one) => one.board },
    { title: "By", class: "wrap", of: (one) => one.actor },
    { title: "Why", class: "wrap", of: (one) => one.why },
  ], registry.promotions) : el("p", { class: "hint" }, "No model of this GPU has been promoted."));
}

function score(one, part) {
  const found = (one.scores ?? []).filter((row) => row.protocol === "grouped").at(-1);
  return found ? plain(found[part].mae_watts.mean) : "";
}

function stateOf(one, registry, isServing) {
  if (isServing) return el("span", { class: "good" }, "serves");
  if (registry.places.some((place) => isSame(place.candidate, one))) return "candidate";
  return one.reasons.length ? `${one.origin}; ${one.reasons.join("; ")}` : one.origin;
}

function promoteButton(one) {
  return el("button", {
    type: "button", class: "plain small",
    onclick: () => act("promote", {
      family: one.family, schema: one.schema, source: one.source, version: one.version,
      board: one.board ?? "", why: "on the page",
    }, `${nameOf(one)} serves now.`),
  }, "Promote", el("span", { class: "visually-hidden" }, ` ${nameOf(one)}`));
}

function rollbackButton(board) {
  return el("button", {
    type: "button", class: "plain small",
    onclick: () => act("rollback", { board, why: "on the page" }, "The model before serves again."),
  }, "Roll back", board ? el("span", { class: "visually-hidden" }, ` board ${board}`) : null);
}

async function act(what, body, told) {
  say(byId("models-error"), "");
  try {
    await post(`${path()}/${what}`, body);
    announce(told);
    await load();
  } catch (error) {
    say(byId("models-error"), error.message);
  }
}

export function start() {
  byId("models-gpu").addEventListener("change", load);
  whenOpened("models", load);
}
