// The field for an API key, shown where the service asks for one.

import { key, onKeyNeeded } from "./api.js";
import { byId, say } from "./dom.js";

export function start(again) {
  const form = byId("key-form");
  const field = byId("key");
  const open = (why) => {
    form.hidden = false;
    say(byId("key-error"), why);
    field.focus();
  };
  onKeyNeeded((why) => open(why));
  byId("key-open").addEventListener("click", () => (form.hidden ? open("") : (form.hidden = true)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(field.value.trim());
    field.value = "";
    form.hidden = true;
    say(byId("key-error"), "");
    again();
  });
  byId("key-forget").addEventListener("click", () => {
    key.set("");
    field.value = "";
    form.hidden = true;
  });
}
