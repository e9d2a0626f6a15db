// Places as tabs, each with its views: some always there, some folded up until somebody opens them.
// The address names the view that was opened last.

import { byId } from "./dom.js";
import { savesOfView } from "./save.js";

const FIRST = "predict";
const opened = {};

/** What to do each time a view comes to be seen. */
export function whenOpened(name, act) {
  opened[name] = act;
}

function isSeen(view) {
  opened[nameOf(view)]?.();
  dispatchEvent(new Event("resize"));  // figures that were drawn out of sight
}

const tabs = () => [...document.querySelectorAll("[role=tab]")].filter((tab) => tab.offsetParent);
const placeOf = (tab) => byId(tab.getAttribute("aria-controls"));
const viewsIn = (root) => [...root.querySelectorAll("[id^=view-]")];
const nameOf = (view) => view.id.replace("view-", "");
const isFolded = (view) => view.matches("details:not([open])");

/** Go to a view: its place is shown, and it is unfolded and scrolled to where it is not the first there. */
export function open(name, { focus = false, remember = true } = {}) {
  const view = byId(`view-${name}`);
  const place = view.closest("[role=tabpanel]");
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = placeOf(tab) === place;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    placeOf(tab).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  for (const one of viewsIn(place)) if (!isFolded(one)) isSeen(one);
  if (view.matches("details")) {
    view.open = true;  // "toggle" tells it
    view.scrollIntoView();
  }
  if (remember) address(name);
}

function address(name) {
  const hash = name === FIRST ? "" : `#${name}`;
  history.replaceState(history.state, "", location.pathname + location.search + hash);
}

/** The view that the address names. */
function named() {
  const name = location.hash.slice(1);
  return viewsIn(document).some((view) => nameOf(view) === name) ? name : FIRST;
}

export function start() {
  const list = byId("tabs");
  const go = (tab, focus) => open(nameOf(viewsIn(placeOf(tab))[0]), { focus });
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) go(tab, false);
  });
  list.addEventListener("keydown", (event) => {
    const all = tabs();
    const at = all.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    go(all.at(next % all.length), true);
  });
  addEventListener("hashchange", () => open(named(), { remember: false }));
  open(named(), { remember: false });
}

/** What every view has, once it is wired; those in sight are told. */
export function fill() {
  for (const view of viewsIn(document)) {
    view.append(savesOfView(view, view.dataset.title));
    view.addEventListener("toggle", () => {
      if (!view.open) return;
      address(nameOf(view));
      isSeen(view);
    });
    if (!isFolded(view) && !view.closest("[role=tabpanel]").hidden) isSeen(view);
  }
}
