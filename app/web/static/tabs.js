// Views as tabs: arrow keys move between them, the address names the one that is open.

import { byId } from "./dom.js";
import { savesOfView } from "./save.js";

const WITHOUT_KERNEL = new Set(["application", "history", "accuracy", "measurements", "models"]);
const opened = {};

/** What to do each time a view is opened. */
export function whenOpened(name, act) {
  opened[name] = act;
}

export function open(name, { focus = false, remember = true } = {}) {
  for (const tab of tabs()) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  byId("main").classList.toggle("with-kernel", !WITHOUT_KERNEL.has(name));
  if (remember) {
    const hash = name === "predict" ? "" : `#${name}`;
    history.replaceState(history.state, "", location.pathname + location.search + hash);
  }
  opened[name]?.();
}

const tabs = () => [...document.querySelectorAll("[role=tab]")];
const nameOf = (tab) => tab.id.replace("tab-", "");

/** The view that the address names. */
function named() {
  const name = location.hash.slice(1);
  return tabs().some((tab) => nameOf(tab) === name) ? name : "predict";
}

export function start() {
  const list = byId("tabs");
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) open(nameOf(tab));
  });
  list.addEventListener("keydown", (event) => {
    const all = tabs();
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    open(nameOf(all.at(next % all.length)), { focus: true });
  });
  for (const tab of tabs()) {
    const view = byId(tab.getAttribute("aria-controls"));
    view.append(savesOfView(view, tab.textContent.trim()));
  }
  addEventListener("hashchange", () => open(named(), { remember: false }));
  open(named(), { remember: false });
}
