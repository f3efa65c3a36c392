"use strict";
// The explorer. Views are hashes (#/user/ID, #/new/ID,ID, #/map), so each can be linked and gone back to.
// Everything that came from data enters the page as a text node or an attribute, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const $ = (selector) => document.querySelector(selector);

/** An element with attributes (functions become listeners, false ones are left out) and children. */
function make(element, attributes = {}, ...children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}
const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, ...children);
const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, ...children);

function say(text) {
  $("#status").textContent = text;
  clearTimeout(say.timer);
  if (text) say.timer = setTimeout(() => say(""), 6000);
}

// -- the service ---------------------------------------------------------------------------------

async function call(path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  if (response.status === 401) {
    await askToken();
    return call(path, body);
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error.message); // its hint is for those who write requests
  return answer;
}

let asking = null; // several calls may need the token at once; one dialog is enough
function askToken() {
  asking ??= new Promise((resolve) => {
    $("#token-value").value = "";
    $("#token").addEventListener("close", () => {
      sessionStorage.setItem("token", $("#token-value").value);
      asking = null;
      resolve();
    }, { once: true });
    $("#token").showModal();
  });
  return asking;
}

const find = async (side, query) =>
  (await call(`/v1/${side}s?limit=12&query=${encodeURIComponent(query)}`))[`${side}s`];

// -- pieces --------------------------------------------------------------------------------------

/** Three significant digits, as the sentences have them: small scores differ as much as large ones. */
const digits = (number) => number.toPrecision(3);

const named = (entry, side) =>
  [h("span", { class: "id" }, String(entry[side])), entry.name ? h("span", { class: "name" }, entry.name) : null];

/** A search field with a list to choose from: type, arrow keys, Enter, Escape. */
function chooser(side, label, hint, choose) {
  const list = h("ul", { role: "listbox", id: `${side}-list`, "aria-label": label, hidden: "" });
  const input = h("input", {
    id: `${side}-input`, type: "text", role: "combobox", autocomplete: "off", placeholder: hint, maxlength: 100,
    "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list",
    input: () => search(), focus: () => search(), keydown: key, blur: () => setTimeout(close, 150),
  });
  let found = [], at = -1, asked = 0;

  async function search() {
    const mine = ++asked;
    await new Promise((resolve) => setTimeout(resolve, 120));
    if (mine !== asked) return;
    try {
      const query = input.value.trim(), answer = await find(side, query);
      if (mine === asked) show(answer, `No ${side} matches “${query}”`);
    } catch (error) { say(error.message); }
  }
  function show(entries, otherwise) {
    [found, at] = [entries, -1];
    list.replaceChildren(...entries.map((entry, index) => h("li", {
      role: "option", id: `${side}-option-${index}`, "aria-selected": "false",
      mousedown: (event) => { event.preventDefault(); pick(index); },
    }, named(entry, side).flatMap((part) => [part, " "]))));
    if (!entries.length && otherwise) list.append(h("li", { role: "option", "aria-disabled": "true" }, otherwise));
    list.hidden = !list.children.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.removeAttribute("aria-activedescendant");
  }
  function close() { asked++; show([]); }
  function move(step) {
    if (!found.length) return;
    at = (at + step + found.length) % found.length;
    [...list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === at)));
    input.setAttribute("aria-activedescendant", list.children[at].id);
    list.children[at].scrollIntoView({ block: "nearest" });
  }
  function pick(index) {
    const id = found[index][side];
    input.value = "";
    close();
    choose(id);
  }
  function key(event) {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && found.length) pick(Math.max(at, 0));
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  }
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, list);
}

/** Rows with an id, a name, a number and a bar; buttons where there is something to open. */
function rows(entries, { value, open, side = "item" }) {
  const largest = Math.max(...entries.map((entry) => Math.abs(value?.(entry) ?? 0)), 1e-12);
  return entries.map((entry) => {
    const number = value?.(entry);
    const bar = value && h("i", { class: number < 0 && "against" });
    if (bar) bar.style.width = `${(100 * Math.abs(number)) / largest}%`;
    return h("li", {}, h(open ? "button" : "div", {
      class: "row", type: open && "button", "aria-pressed": open && "false", click: open && ((event) => open(entry, event.currentTarget)),
    }, named(entry, side), value && h("span", { class: "value" }, digits(number)), bar && h("span", { class: "bar" }, bar)));
  });
}

const card = (title, count, ...content) =>
  h("section", { class: "card" }, h("h2", {}, title, " ", h("span", { class: "count" }, count)), ...content);

// -- a user, or someone new ----------------------------------------------------------------------

async function showUser(id) {
  const pick = chooser("user", "Whose recommendations?", "Type an id or a name", (user) => go(`#/user/${encodeURIComponent(user)}`));
  if (id === "") {
    const some = await find("user", "");
    return [pick, card("Some users", "", h("ul", { class: "rows" }, rows(some, {
      side: "user", open: (entry) => go(`#/user/${encodeURIComponent(entry.user)}`) })))];
  }
  const [history, { recommendations: [answer] }] = await Promise.all([
    call(`/v1/history?user=${encodeURIComponent(id)}`), call("/v1/recommend", { users: [id], k: 20 })]);
  const explanation = h("section", { id: "explanation", class: "card", "aria-live": "polite", tabindex: "-1" });
  explanation.hidden = true;
  const open = async (entry, button) => {
    for (const other of document.querySelectorAll("button.row")) other.setAttribute("aria-pressed", String(other === button));
    explanation.replaceChildren(...explain(await call("/v1/explain", { user: id, item: entry.item })));
    explanation.hidden = false;
    explanation.scrollIntoView({ block: "nearest" });
    explanation.focus({ preventScroll: true });
  };
  return [pick, ...sides(`What ${id} has`, history, answer.items, (entry, button) => open(entry, button).catch((error) => say(error.message))),
    explanation];
}

async function showNew(text) {
  const items = text ? text.split(",").map(decodeURIComponent) : [];
  const show = (list) => go(`#/new/${list.map(encodeURIComponent).join(",")}`);
  const pick = chooser("item", "What do they have?", "Type an item to add it", (item) => {
    if (!items.includes(String(item))) show([...items, String(item)]);
  });
  if (!items.length) return [pick, h("p", { class: "soft" }, "Add one item or more: the model has never seen this person, and folds them in.")];
  const chips = h("ul", { class: "chips", "aria-label": "Chosen items" }, items.map((item) =>
    h("li", {}, h("button", { type: "button", "aria-label": `Remove ${item}`, click: () => show(items.filter((other) => other !== item)) }, `${item} ×`))));
  const [{ recommendations: [answer] }, own] = await Promise.all([
    call("/v1/recommend", { items, k: 20 }), Promise.all(items.map(withName))]);
  return [pick, chips, ...sides("What they have", own, answer.items)];
}

const looked = new Map(); // adding one item to many asks for one name, not for all again
/** An item with its readable name: a search lists ids in order, so an id stands before longer ones that begin with it. */
async function withName(item) {
  if (!looked.has(item)) {
    const found = await find("item", item.slice(0, 100));
    looked.set(item, found.find((entry) => String(entry.item) === item) ?? { item });
  }
  return looked.get(item);
}

const sides = (title, history, items, open) => [
  open && h("p", { class: "soft" }, "Choose a recommendation to see why."),
  h("div", { class: "columns" },
    card(title, history.length, h("ul", { class: "rows", "aria-label": title, tabindex: "0" }, rows(history, {}))),
    card("Recommended", `best ${items.length}`, h("ol", { class: "rows", id: "recommended" }, rows(items, { value: (entry) => entry.score, open })))),
];

// -- an explanation ------------------------------------------------------------------------------

function explain(why) {
  const carried = why.carried_by.slice(0, 8), others = why.carried_by.length - carried.length;
  return [
    h("h2", {}, `Why ${why.item}?`), h("p", {}, why.sentence),
    h("h3", {}, "The path through the layers"),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Path through the layers" }, pathPicture(why)),
    h("p", { class: "legend" },
      h("span", {}, s("svg", { class: "path", viewBox: "0 0 36 18" }, s("path", { class: "step", d: step(2, 34, 9, false) })), "linear step"),
      h("span", {}, s("svg", { class: "path", viewBox: "0 0 36 18" }, s("path", { class: "step nonlinear", d: step(2, 34, 9, true) })), "non-linear step"),
      h("span", {}, "bars: what each layer adds to the score")),
    h("h3", {}, "Carried by"),
    h("ul", { class: "rows whole" }, rows(carried, { value: (entry) => entry.contribution })),
    h("p", { class: "soft" }, `${others ? `and ${others} more; ` : ""}${digits(why.remainder)} of the score is what no single item brings.`),
  ];
}

/** A straight line, or a wave: the branch shows without its colour. */
function step(x0, x1, y, nonlinear) {
  if (!nonlinear) return `M${x0} ${y}H${x1}`;
  const part = (x1 - x0) / 4;
  return `M${x0} ${y}q${part / 2} -9 ${part} 0t${part} 0t${part} 0t${part} 0`;
}

/** The layers side by side, closer on a narrow screen, but never so close that their numbers meet. */
function pathPicture(why) {
  const left = 52, right = 28, steps = Math.max(1, why.layers.length - 1);
  const room = document.documentElement.clientWidth - 68; // without the margins of the page and of a card
  const gap = Math.max(53, Math.min(130, 560 / steps, (room - left - right) / steps)), whole = left + gap * steps + right, lanes = { user: 40, item: 100 }, base = 205;
  const x = (layer) => left + layer * gap;
  const largest = Math.max(...why.layers.map((each) => Math.abs(each.contribution)), 1e-12);
  const size = (contribution) => (50 * Math.abs(contribution)) / largest;
  const below = Math.max(0, ...why.layers.filter((each) => each.contribution < 0).map((each) => size(each.contribution) + 18));
  const gates = new Map(why.gates.map((gate) => [gate.layer, gate]));
  const words = why.layers.map(({ layer }) => gates.has(layer) && `layer ${layer}: user ${gates.get(layer).user.branch}, item ${gates.get(layer).item.branch}`).filter(Boolean);
  const picture = s("svg", { class: "path", viewBox: `0 0 ${whole} ${245 + below}`, role: "img",
    "aria-label": words.length ? `Gates chose: ${words.join("; ")}` : "No gates: every layer is the model's own step" });
  picture.style.minWidth = `${whole}px`; // letters are not made smaller
  for (const [lane, y] of Object.entries(lanes)) {
    picture.append(s("text", { class: "lane", x: 8, y: y + 4 }, lane));
    for (const { layer } of why.layers) {
      const choice = gates.get(layer)?.[lane];
      if (layer > 0) picture.append(s("path", { class: `step ${choice?.branch === "non-linear" ? "nonlinear" : ""}`, d: step(x(layer - 1) + 9, x(layer) - 9, y, choice?.branch === "non-linear") }));
      if (choice) picture.append(s("text", { x: (x(layer - 1) + x(layer)) / 2, y: y - 14, "text-anchor": "middle" }, `${Math.round(100 * choice.probability)} %`));
    }
    for (const { layer } of why.layers) picture.append(s("circle", { class: "node", cx: x(layer), cy: y, r: 7 }));
  }
  picture.append(s("text", { class: "lane", x: 8, y: 134 }, "score"));
  for (const { layer, contribution } of why.layers) {
    const [height, against] = [size(contribution), contribution < 0];
    picture.append(
      s("rect", { class: `part ${against ? "against" : ""}`, x: x(layer) - 14, y: against ? base : base - height, width: 28, height, rx: 2 }),
      s("text", { x: x(layer), y: against ? base + height + 14 : base - height - 5, "text-anchor": "middle" }, digits(contribution)),
      s("text", { x: x(layer), y: base + below + 18, "text-anchor": "middle" }, `layer ${layer}`));
  }
  picture.append(s("line", { class: "axis", x1: x(0) - 24, x2: x(why.layers.length - 1) + 24, y1: base, y2: base }));
  return picture;
}

// -- the gate map --------------------------------------------------------------------------------

const CLASSES = { FL: "always linear", PNL: "mixed", FNL: "always non-linear" };
const SHAPES = { // drawn around the origin: the class shows without its colour
  FL: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", PNL: "M0 -5L4.5 3.5H-4.5Z", FNL: "M-3.5 -3.5H3.5V3.5H-3.5Z",
};

async function showMap() {
  const map = await call("/v1/overview?limit=1500");
  if (!map.layers.length) return [h("p", { class: "field" }, "This model has no gates, so there is nothing to map.")];
  const about = h("section", { class: "card", "aria-live": "polite" }, h("p", { class: "soft" }, "Choose a dot, or move with the arrow keys and press Enter."));
  const place = h("div", { class: "card" });
  const select = h("select", { id: "layer", change: () => draw() }, map.layers.map((layer, at) => h("option", { value: at }, `layer ${layer}`)));
  const draw = () => place.replaceChildren(mapPicture(map.sample, Number(select.value), (node) => about.replaceChildren(...describe(node, map.layers))));
  draw();
  const legend = Object.entries(CLASSES).map(([name, text]) =>
    h("span", {}, s("svg", { viewBox: "-9 -6 18 12" }, s("path", { class: `dot ${name}`, d: SHAPES[name] })), `${name}: ${text}, ${map.classes[name].toLocaleString()}`));
  return [
    h("div", { class: "tools" }, h("span", {}, h("label", { for: "layer" }, "Gate of "), select),
      h("span", { class: "soft" }, map.layers.map((layer) => `${Math.round(100 * map.nonlinear_share[layer])} % non-linear at layer ${layer}`).join(" · "))),
    h("p", { class: "legend" }, legend), place,
    h("p", { class: "soft" }, map.sample.length < map.nodes ? `${map.sample.length.toLocaleString()} of ${map.nodes.toLocaleString()} nodes, evenly along the order of degree` : `all ${map.nodes.toLocaleString()} nodes`), about];
}

/** Round numbers between two, each a power of ten times one of `steps`; the two themselves where fewer lie between. */
function ticks(least, most, steps) {
  const powers = Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, at) => 10 ** at);
  const round = powers.flatMap((power) => steps.map((step) => step * power)).filter((tick) => least <= tick && tick <= most);
  return round.length > 1 ? round : [least, most];
}

function mapPicture(sample, layer, show) {
  const width = matchMedia("(max-width: 44rem)").matches ? 400 : 760; // fewer units on a phone, so that words stay legible
  const [height, left, bottom, top] = [380, 48, 44, 12];
  const degrees = sample.map((node) => Math.max(node.degree, 1));
  const least = Math.min(...degrees), most = Math.max(...degrees, least + 1);
  const x = (degree) => left + 10 + ((width - left - 30) * Math.log(Math.max(degree, 1) / least)) / Math.log(most / least);
  const y = (probability) => height - bottom - (height - bottom - top) * probability;
  const picture = s("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "application",
    "aria-label": `Degree against the probability of the non-linear branch, ${sample.length} nodes. Arrow keys move by degree, Enter opens.`,
    keydown: key, click: (event) => { const at = event.target.getAttribute?.("data-at"); if (at !== null && at !== undefined) stand(Number(at)); } });
  for (const p of [0, 0.5, 1]) picture.append(
    s("line", { class: "axis", x1: left, x2: width, y1: y(p), y2: y(p), "stroke-dasharray": p === 0.5 && "4 4" }),
    s("text", { x: left - 8, y: y(p) + 4, "text-anchor": "end" }, String(p)));
  for (const tick of ticks(least, most, width > 400 ? [1, 2, 5] : [1, 3])) picture.append(
    s("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, tick.toLocaleString()));
  picture.append(
    s("text", { x: (width + left) / 2, y: height - 6, "text-anchor": "middle" }, "degree (training interactions)"),
    s("text", { x: 12, y: (height - bottom) / 2, transform: `rotate(-90 12 ${(height - bottom) / 2})`, "text-anchor": "middle" }, "P(non-linear)"));
  const nodes = [...sample].sort((one, other) => one.degree - other.degree);
  const dots = nodes.map((node, at) => s("path", { class: `dot ${node.class}`, d: SHAPES[node.class], "data-at": at,
    transform: `translate(${x(node.degree).toFixed(1)} ${y(node.probability[layer]).toFixed(1)})` }));
  picture.append(...dots);
  let here = -1;
  function stand(at) {
    dots[here]?.classList.remove("here");
    here = Math.max(0, Math.min(nodes.length - 1, at));
    dots[here].classList.add("here");
    picture.append(dots[here]); // on top of the others
    show(nodes[here]);
  }
  function key(event) {
    const moves = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowUp: here + 25, ArrowDown: here - 25, Home: 0, End: nodes.length - 1 };
    if (event.key in moves) stand(moves[event.key]);
    else if (event.key === "Enter" && here >= 0) openNode(nodes[here]);
    else return;
    event.preventDefault();
  }
  return picture;
}

const openNode = (node) => go(node.side === "user" ? `#/user/${encodeURIComponent(node.id)}` : `#/new/${encodeURIComponent(node.id)}`);

const describe = (node, layers) => [
  h("h2", {}, String(node.id), " ", h("span", { class: "count" }, `${node.side}, degree ${node.degree.toLocaleString()}, ${CLASSES[node.class]}`)),
  h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "layer"), h("th", {}, "P(non-linear)"), h("th", {}, "branch"))),
    h("tbody", {}, layers.map((layer, at) => h("tr", {}, h("td", {}, String(layer)), h("td", {}, node.probability[at].toFixed(3)),
      h("td", {}, node.nonlinear[at] ? "non-linear" : "linear"))))),
  h("button", { class: "primary", type: "button", click: () => openNode(node) },
    node.side === "user" ? "See the recommendations" : "See what goes with it"),
];

// -- views ---------------------------------------------------------------------------------------

const VIEWS = { user: showUser, new: showNew, map: showMap };
const go = (hash) => { location.hash = hash; };

async function route() {
  const [, view = "user", rest = ""] = location.hash.match(/^#\/(user|new|map)(?:\/(.*))?$/) ?? [];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const mine = (route.count = (route.count ?? 0) + 1);
  let content;
  try {
    content = await VIEWS[view](view === "user" ? decodeURIComponent(rest) : rest);
  } catch (error) {
    content = [h("p", { class: "field", role: "alert" }, error.message), h("a", { href: "#/" }, "Back to all users")];
  }
  if (mine === route.count) $("#main").replaceChildren(...content.filter(Boolean)); // a later view has won otherwise
}

addEventListener("hashchange", () => { route(); scrollTo(0, 0); });
addEventListener("DOMContentLoaded", async () => {
  route();
  try {
    const model = await call("/v1/model");
    $("#model").textContent = `${model.model} on ${model.data.name}: ${model.data.users.toLocaleString()} users, ${model.data.items.toLocaleString()} items`;
  } catch (error) { say(error.message); }
});
