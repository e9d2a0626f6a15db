// What can be told of PTX or CUDA text without asking: its language and the kernels in it.
// A convenience for choosing; the service reads the text itself and has the last word.

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
