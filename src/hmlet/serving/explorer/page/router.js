// Addresses: every state of the explorer is #/view/part/part?key=value, with ids URL-encoded.
//   #/                              users worth a look
//   #/user/ID  #/user/ID/ITEM       a user, and the explanation of one item
//   #/what-if/ID?add=A,B&without=C  a user with other items
//   #/new/A,B?without=A             a newcomer
//   #/item/ID                       an item
//   #/compare/ID?run=NAME           two runs side by side
//   #/map?colour=&show=&find=&node=SIDE:ID&at=X,Y,ZOOM
//   #/gates?layer=N

const encode = encodeURIComponent;
const decode = (text) => { try { return decodeURIComponent(text); } catch { return text; } };

/** The address of a view. Lists become A,B with each id encoded; empty values are left out. */
export function address(view, parts = [], query = {}) {
  const joined = Object.entries(query)
    .filter(([, value]) => (Array.isArray(value) ? value.length : value != null && value !== ""))
    .map(([key, value]) => `${key}=${Array.isArray(value) ? value.map(encode).join(",") : encode(value)}`);
  const path = [view, ...parts.map((part) => (Array.isArray(part) ? part.map(encode).join(",") : encode(part)))];
  return `#/${path.join("/")}${joined.length ? `?${joined.join("&")}` : ""}`;
}

export const list = (text) => (text ? text.split(",").map(decode) : []);

/** The view of the current address; `parts` are decoded, `raw` and the values of `query` are not: lists have commas. */
export function here() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...raw] = path.split("/");
  const query = Object.fromEntries(search.split("&").filter(Boolean).map((pair) => {
    const at = pair.indexOf("=");
    return at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
  }));
  return { view, raw, parts: raw.map(decode), query, value: (key) => decode(query[key] ?? "") };
}

export const go = (where) => { location.hash = where; };
/** Change the address without a new view and without a new entry in the history. */
export const note = (where) => history.replaceState(null, "", where);

export const toUser = (id) => address("user", [id]);
export const toItem = (id) => address("item", [id]);
export const toNode = (side, id) => (side === "user" ? toUser(id) : toItem(id));
