// The service: one way to ask, with the token if it needs one.
import { $ } from "./dom.js";

/** What went wrong; `again` if it may go better next time. */
const failure = (message, again) => Object.assign(new Error(message), { again });
const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function call(path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  } catch {
    throw failure("The service does not answer. Is it still running?", true);
  }
  if (response.status === 401) {
    if (token === sessionStorage.getItem("token")) await askToken(token); // else another call has asked for it meanwhile
    return call(path, body);
  }
  if (response.status === 202) { // it is being computed: ask until it is there
    await wait(500);
    return call(path, body);
  }
  const answer = await response.json();
  if (response.ok) return answer;
  throw failure(answer.error.message, response.status >= 500); // its hint is for those who write requests
}

let asking = null; // several calls may need the token at once; one dialog is enough
function askToken(refused) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = $("#token");
    $("#token-value").value = dialog.returnValue = "";
    $("#token-refused").hidden = !refused;
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue !== "continue") { reject(failure("The service shows nothing without its token.", true)); return; }
      sessionStorage.setItem("token", $("#token-value").value);
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

const kept = new Map();
/** An answer that does not change while the page is open. */
export function once(path) {
  if (!kept.has(path)) {
    const answer = call(path);
    kept.set(path, answer);
    answer.catch(() => kept.delete(path));
  }
  return kept.get(path);
}

export const about = () => once("/v1/explore");
export const find = (side, query, limit = 8) => call(`/v1/${side}s?limit=${limit}&query=${encodeURIComponent(query.slice(0, 100))}`);
export const node = (side, id) => call(`/v1/explore/${side}?id=${encodeURIComponent(id)}`);

const looked = new Map(); // adding one item to many asks for one name, not for all again
/** An item with its name: a search lists ids in order, so an id comes before longer ones that begin with it. */
export async function withName(item) {
  if (!looked.has(item)) {
    const found = await find("item", item, 12);
    looked.set(item, found.find((entry) => String(entry.item) === item) ?? { item });
  }
  return looked.get(item);
}
