// Predictions answered before, a page at a time.

import { get } from "./api.js";
import { byId, el, joules, say, seconds, show, table, watts, when } from "./dom.js";
import { openPrediction } from "./predict.js";
import { whenOpened } from "./tabs.js";

const PAGE = 50;

let listed = [];

async function load(before = null) {
  say(byId("history-error"), "");
  try {
    const query = new URLSearchParams({ limit: PAGE, ...(before && { before }) });
    const page = await get(`/predictions?${query}`);
    listed = before ? [...listed, ...page] : page;
    byId("history-more").hidden = page.length < PAGE;
    showTable();
  } catch (error) {
    say(byId("history-error"), error.message);
  }
}

function showTable() {
  if (!listed.length) {
    show(byId("history-table"), el("p", { class: "hint" }, "Nothing has been predicted yet."));
    return;
  }
  show(byId("history-table"), table("Newest first", [
    {
      title: "Kernel", head: true, class: "wrap",
      of: (one) => el("a", {
        href: `/?prediction=${one.id}`,
        onclick: (event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          openPrediction(one.id);
        },
      }, one.kernel ?? "measured work"),
    },
    { title: "GPU", of: (one) => one.gpu },
    { title: "Power", num: true, of: (one) => watts(one.watts) },
    { title: "Time", num: true, of: (one) => seconds(one.seconds) },
    { title: "Energy", num: true, of: (one) => joules(one.joules) },
    { title: "When", of: (one) => when(one.created) },
  ], listed));
}

export function start() {
  byId("history-reload").addEventListener("click", () => load());
  byId("history-more").addEventListener("click", () => load(listed.at(-1)?.id));
  whenOpened("history", () => load());
}
