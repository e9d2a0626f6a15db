// A field for code: pasted, dropped or opened from a file. It tells what it holds.

import { byId } from "./dom.js";
import { takesFiles } from "./forms.js";

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
  /** The file that the text came from, if it is still as it was there. */
  name = "";
  #tell;
  #later = null;

  constructor(id, told = {}) {
    this.field = byId(id);
    this.note = byId(`${id}-note`);
    this.#tell = { language: languageOf, changed: () => {}, replaced: () => {}, ...told };
    this.field.addEventListener("input", () => {
      this.name = "";
      clearTimeout(this.#later);
      this.#later = setTimeout(() => this.update(), TYPED_MILLISECONDS);
    });
    this.field.addEventListener("paste", () => setTimeout(() => this.update()));
    takesFiles(id, async (file) => this.set(await file.text(), file.name));
  }

  get text() {
    return this.#whole ?? this.field.value;
  }

  get language() {
    return this.#tell.language(this.text);
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
    this.name = name;
    this.#tell.replaced();
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
    const { text, kernels } = this;
    this.note.textContent = [
      this.name,
      ...(text.trim() ? [this.language === "ptx" ? "PTX" : "CUDA", kernels.length === 1 ? "1 kernel" : `${kernels.length} kernels`] : []),
      this.#whole && "too long to edit here: only its beginning is shown, all of it is sent",
    ].filter(Boolean).join(" · ");
    this.#tell.changed(kernels);
  }
}

// What can be told of PTX or CUDA text without asking: its language and the kernels in it.

const LINE = /\/\/[^\n]*/g;
const BLOCK = /\/\*[\s\S]*?\*\//g;

const bare = (text) => text.replace(BLOCK, " ").replace(LINE, "");

/** `ptx` or `cuda`. */
export function languageOf(text) {
  return /^\s*\.(version|target)\b/m.test(bare(text.slice(0, 200_000))) ? "ptx" : "cuda";
}

/** Names of the kernels in order, each once. */
export function kernelsIn(text, language) {
  const pattern = language === "ptx"
    ? /\.entry\s+([A-Za-z_$%][\w$]*)/g
    : /__global__[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)[^;{}()]*?)?([A-Za-z_]\w*)\s*\(/g;
  return [...new Set([...bare(text).matchAll(pattern)].map((found) => found[1]))];
}
