// Library operators by their shape, and language models as sums of them. Their fields come from the API's schema.

import { packaged, post } from "./api.js";
import { bar, estimates, facts, table, trustLine, warningsBox } from "./cards.js";
import { amount, announce, byId, colour, el, joules, percent, plain, quantity, seconds, show, unitFor, watts } from "./dom.js";
import { members, submits, takesFiles, telling } from "./forms.js";
import { draw } from "./plot.js";
import { whenOpened } from "./tabs.js";

/** The fields of the operator chosen; the others are not sent. */
function choose() {
  for (const shape of byId("operator-form").querySelectorAll("[data-names]"))
    shape.hidden = shape.disabled = !shape.dataset.names.split(" ").includes(byId("operator-name").value);
}

/** Cards, trust, facts as [term, text] and warnings of an answer. */
function present(name, title, answer, told) {
  byId(`${name}-result`).hidden = false;
  byId(`${name}-title`).textContent = `${title} on ${answer.gpu}`;
  show(byId(`${name}-numbers`), estimates(name, answer));
  show(byId(`${name}-facts`), trustLine(answer.trust), facts(told));
  show(byId(`${name}-warnings`), warningsBox(answer.warnings));
  announce(`Predicted: ${joules(answer.energy?.joules)}, ${seconds(answer.time?.seconds)}`);
}

function showOperator(answer) {
  const found = answer.operator;
  present("operator", found.asked.name.replace("_", " "), answer, [
    ["Bound by", found.bound],
    ["Arithmetic", `${quantity(found.flops_per_second, "FLOP/s")} of ${quantity(found.peak_flops_per_second, "FLOP/s")}`],
    ["Memory", `${quantity(found.bytes_per_second, "B/s")} of ${quantity(found.peak_bytes_per_second, "B/s")}`],
    ["Each FLOP", found.joules_per_flop ? `${plain(1e12 * found.joules_per_flop)} pJ` : "unknown"],
    ["Without pauses", watts(found.sustained_watts)], ["Kernels of", found.framework],
    answer.id ? ["Reasons", el("a", { href: `/?prediction=${answer.id}` }, "why it draws that")] : ["Solved example", "press Predict"],
  ]);
}

const named = (one) => one.role.replaceAll("_", " ");

function showLanguage(answer) {
  const { model, curve } = answer;
  present("language", `${model.family ?? "Decoder"} of ${plain(model.parameters / 1e9)} billion parameters`, answer, [
    ["Each token", joules(answer.joules_per_token)], ["Tokens", `${plain(answer.tokens_per_second)} a second`],
    ["Memory of each GPU", `${quantity(model.weight_bytes, "B")} of weights, ${quantity(model.cache_bytes, "B")} of cache`],
    ["Not included", answer.not_included.join(", ")]]);
  const phase = { title: "Phase", head: true, of: (one) => one.phase };
  const token = amount("J/token", (one) => one.joules_per_token, (value) => (value === null ? "does not fit" : plain(value)));
  const tokens = amount("Tokens/s", (one) => one.tokens_per_second, plain);
  show(byId("language-phases"), table("By phase", [phase,
    amount("Time", (one) => one.time.seconds, seconds, "s"), amount("Energy", (one) => one.energy.joules, joules, "J"),
    amount("Power", (one) => one.power.watts, watts, "W"), tokens, token], answer.phases));
  show(byId("language-tables"),
    table("By operator", [{ title: "Operator", head: true, of: named }, { ...phase, head: false },
      amount("Launches", (one) => one.launches), amount("Time", (one) => one.seconds, seconds, "s"),
      amount("Energy", (one) => one.joules, joules, "J"),
      amount("Share of energy", (one) => one.energy_share, (value) => [percent(value), bar(0, value)])], answer.operators),
    curve.length ? table("Along the curve", [{ ...amount("Batch", (one) => one.batch), head: true },
      amount("Power limit", (one) => one.power_limit_watts, (value) => (value === null ? "" : watts(value)), "W"),
      tokens, token, { title: "Pareto set", of: (one) => (one.pareto ? "yes" : "") }], curve) : null);
  draw(byId("language-operators"), () => byOperator(answer));
  byId("language-curve-box").hidden = !curve.length;
  if (curve.length) draw(byId("language-curve"), () => byToken(curve.filter((one) => one.joules_per_token !== null)));
}

/** Joules of each operator, a colour for each phase. */
function byOperator({ operators, phases }) {
  const [factor, unit] = unitFor(operators.map((one) => one.joules), "J");
  const bars = ({ phase }, at) => {
    const rows = operators.filter((one) => one.phase === phase);
    return { type: "bar", orientation: "h", name: phase, marker: { color: colour(`link-${at}`) },
      y: rows.map(named), x: rows.map((one) => one.joules / factor) };
  };
  return {
    title: "Energy by operator and phase; the table says the same", data: phases.map(bars),
    layout: { barmode: "stack", height: 460, yaxis: { categoryorder: "total ascending" }, xaxis: { title: { text: `Energy, ${unit}` } } },
  };
}

/** Joules of a token over batches, or over power limits; larger marks are the Pareto set. */
function byToken(points) {
  const [title, member] = points.some((one) => one.power_limit_watts !== null)
    ? ["Power limit, W", "power_limit_watts"] : ["Batch", "batch"];
  return {
    title: "Energy of a token along the curve; the table says the same",
    data: [{ type: "scatter", mode: "lines+markers", x: points.map((one) => one[member]), y: points.map((one) => one.joules_per_token),
      text: points.map((one) => `${plain(one.tokens_per_second)} tokens/s`), hoverinfo: "x+y+text",
      line: { color: colour("bar") }, marker: { size: points.map((one) => (one.pareto ? 11 : 6)) } }],
    layout: { xaxis: { type: "log", title: { text: title } }, yaxis: { type: "log", title: { text: "J/token" } } },
  };
}

/** What shows an answer, where it is asked for, and what is posted, of the fields' values. */
const VIEWS = {
  operator: [showOperator, "/predict", ({ gpu, framework, power_limit_watts, ...operator }) => ({ gpu, framework, power_limit_watts, operator })],
  language: [showLanguage, "/language-models", (given) => ({ config: JSON.parse(byId("language-config").value), ...given })],
};

export function start() {
  byId("operator-name").addEventListener("change", choose);
  takesFiles("language", async (file) => (byId("language-config").value = await file.text()));
  for (const [name, [present, path, body]] of Object.entries(VIEWS)) {
    let isOpened = false;
    const form = byId(`${name}-form`);
    submits(name, async () => present(await post(path, body(members(form)))));
    whenOpened(name, () => isOpened || telling(name, async () => {
      isOpened = true;
      const { request, prediction } = await packaged(name);
      const given = { ...request, ...request.operator };
      for (const field of form.elements) if (field.name in given) field.value = given[field.name];
      choose();
      byId("language-config").value ||= JSON.stringify(request.config, null, 1) ?? "";
      present(prediction);
    }));
  }
}
