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
