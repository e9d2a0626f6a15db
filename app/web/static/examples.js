// Examples with their answers, solved before anyone asked: the page opens with the first.

import { packaged } from "./api.js";
import { byId } from "./dom.js";
import * as kernel from "./kernel.js";
import { openExample } from "./predict.js";

const FIRST = "transpose";

const buttons = () => [...document.querySelectorAll("[data-example]")];

async function pick(name) {
  const solved = await packaged(name);
  await openExample(solved, name === FIRST ? "/" : `/?example=${name}`);
  for (const button of buttons()) button.setAttribute("aria-pressed", String(button.dataset.example === name));
  return solved.request.gpu;
}

/** Show the example that the address names, or the first, unless somebody was faster: its GPU. */
export async function openFirst() {
  const asked = new URLSearchParams(location.search).get("example");
  const name = buttons().some((button) => button.dataset.example === asked) ? asked : FIRST;
  return kernel.sourceText() ? null : pick(name);
}

export function start() {
  byId("examples").addEventListener("click", (event) => {
    const { example } = event.target.closest("[data-example]")?.dataset ?? {};
    if (example) pick(example).catch(kernel.complain);
  });
}
