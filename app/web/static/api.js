// Calls to the service: JSON in and out, problems as errors, the key, jobs.

const KEY = "wattcast.key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

let askForKey = () => {};

/** Who is told that the service wants a key, or another one. */
export function onKeyNeeded(tell) {
  askForKey = tell;
}

/** A problem that the service answered (RFC 9457), or that it did not answer. */
export class Problem extends Error {
  constructor(members, status) {
    super(members.detail || members.title || "the service does not answer");
    this.status = status;
    this.members = members;
    this.slug = String(members.type || "").split("/").pop();
  }
}

function headers(more = {}) {
  const kept = key.get();
  return kept ? { ...more, Authorization: `Bearer ${kept}` } : more;
}

async function call(method, path, { json, form, signal, more } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      headers: headers(json === undefined ? more : { "Content-Type": "application/json", ...more }),
      body: json === undefined ? form : JSON.stringify(json),
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ detail: "The service does not answer. Is it still running?" }, 0);
  }
  const scopes = answer.status === 401 ? "" : answer.headers.get("wattcast-scopes");
  if (scopes !== null) document.documentElement.dataset.scopes = scopes;  // the style sheet hides Admin by it
  if (answer.ok) return answer;
  const members = await answer.json().catch(() => ({ detail: `answered ${answer.status}` }));
  const problem = new Problem(members, answer.status);
  if (answer.status === 401 || (answer.status === 403 && key.get())) askForKey(problem.message);
  throw problem;
}

async function data(answer) {
  return answer.status === 204 ? null : answer.json();
}

export const get = async (path, signal) => data(await call("GET", path, { signal }));
export const post = async (path, json, { signal, more } = {}) =>
  data(await call("POST", path, { json, signal, more }));
export const postForm = async (path, form, signal) =>
  data(await call("POST", path, { form, signal }));
export const remove = async (path) => data(await call("DELETE", path));

async function cameWithThePage(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name} cannot be loaded (${answer.status}).`);
  return answer;
}

/** A JSON file that came with the page, or in it, and another file, as if a reader had chosen it. */
export const packaged = async (name) => {
  const here = document.getElementById(`${name}.json`);
  return here ? JSON.parse(here.textContent) : (await cameWithThePage(`${name}.json`)).json();
};
export const packagedFile = async (name) => new File([await (await cameWithThePage(name)).blob()], name);

const ENDED = new Set(["done", "failed", "cancelled"]);
const POLL_MILLISECONDS = 500;

/** Follow a job to its end: `tell(job)` each time it is looked at. The answer is the job as it ended. */
export async function follow(id, tell) {
  for (;;) {
    const job = await get(`/jobs/${encodeURIComponent(id)}`);
    tell(job);
    if (ENDED.has(job.state)) return job;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}
