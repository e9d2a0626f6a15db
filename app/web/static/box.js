// A field for code: pasted, dropped or opened from a file. It tells what it holds.

import { byId } from "./dom.js";
import { kernelsIn, languageOf } from "./source.js";

const SHOWN_CHARACTERS = 400_000;
const TYPED_MILLISECONDS = 150;

/**
 * The field of this id with its note (`-note`), file (`-file`) and place to drop on (`-drop`).
 * `language(text)` is the text's language; `replaced()` is told when another text comes in whole,
 * `changed(kernels)` of every change.
 */
export class SourceBox {
  /** A text too long to edit: the field shows its beginning, the whole is sent. */
  #whole = null;
  #name = "";
  #language;
  #changed;
  #replaced;
  #later = null;

  constructor(id, { language = languageOf, changed = () => {}, replaced = () => {} } = {}) {
    this.field = byId(id);
    this.note = byId(`${id}-note`);
    this.#language = language;
    this.#changed = changed;
    this.#replaced = replaced;
    this.field.addEventListener("input", () => {
      this.#name = "";
      clearTimeout(this.#later);
      this.#later = setTimeout(() => this.update(), TYPED_MILLISECONDS);
    });
    this.field.addEventListener("paste", () => setTimeout(() => this.update()));
    const read = async (file) => this.set(await file.text(), file.name);
    byId(`${id}-file`).addEventListener("change", (event) => {
      if (event.target.files.length) read(event.target.files[0]);
      event.target.value = "";
    });
    takesFiles(byId(`${id}-drop`), read);
  }

  get text() {
    return this.#whole ?? this.field.value;
  }

  /** The file that the text came from, if it is still as it was there. */
  get name() {
    return this.#name;
  }

  get language() {
    return this.#language(this.text);
  }

  /** Names of the kernels in it. */
  get kernels() {
    return kernelsIn(this.text, this.language);
  }

  /** The text as requests hold it: {ptx} or {cuda}. */
  get member() {
    return { [this.language]: this.text };
  }

  /** Hold this text, with the name of the file that it came from. */
  set(text, name = "") {
    this.#whole = text.length > SHOWN_CHARACTERS ? text : null;
    this.field.value = this.#whole ? text.slice(0, SHOWN_CHARACTERS) : text;
    this.field.readOnly = this.#whole !== null;
    this.#name = name;
    this.#replaced();
    this.update();
  }

  /** Look at what was typed a moment ago, now. */
  settle() {
    if (this.#later) this.update();
  }

  /** Look at the text again. */
  update() {
    clearTimeout(this.#later);
    this.#later = null;
    const { text } = this;
    const isEmpty = !text.trim();
    const { kernels } = this;
    const told = [];
    if (this.#name) told.push(this.#name);
    if (!isEmpty) {
      told.push(this.language === "ptx" ? "PTX" : "CUDA");
      told.push(kernels.length === 1 ? "1 kernel" : `${kernels.length} kernels`);
    }
    if (this.#whole) told.push("too long to edit here: only its beginning is shown, all of it is sent");
    this.note.textContent = told.join(" · ");
    this.#changed(kernels);
  }
}

/** Read files that are dropped on an element. */
export function takesFiles(element, take) {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}
