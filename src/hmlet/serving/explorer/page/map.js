// The map of the embeddings: search, zoom, colour, click for neighbours; a list of what is in view for those who do not see it.
import { about, node, once } from "./api.js";
import { count, empty, h, percent, say } from "./dom.js";
import { rows } from "./lists.js";
import { Plane } from "./plane.js";
import { address, here, note, toNode } from "./router.js";

const LISTED = 30;
const CLUSTER_LIGHT = ["#1f5fa8", "#b4490f", "#2b7d3c", "#7a3e9d", "#a8741a", "#0b7f86", "#b02a5b", "#5c6570"];
const CLUSTER_DARK = ["#7fb2ef", "#f09a5f", "#7fcf8f", "#c79be6", "#e3bd5c", "#5fd0d6", "#f08bb0", "#b4bcc6"];
const RAMPS = { // few to many, linear to non-linear
  popularity: { light: ["#b9d3e6", "#4f8fc0", "#173a66"], dark: ["#2e4b66", "#6fa9da", "#f2f7ff"] },
  gate: { light: ["#0b6e99", "#b9bcc0", "#b4490f"], dark: ["#5fc3ec", "#6d747d", "#f09a5f"] },
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const ramp = (stops, steps) => Array.from({ length: steps }, (_, at) => {
  const place = (at / (steps - 1)) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(place));
  const [one, other] = [rgb(stops[low]), rgb(stops[low + 1])];
  return one.map((value, k) => Math.round(value + (other[k] - value) * (place - low)));
});

export async function showMap({ value }) {
  const model = await about();
  if (!model.mapped) return [empty("There is no map of this model", `${model.model} learns no embeddings with a direction, so nothing can be laid out.`)];
  const [data, labels] = await Promise.all([once("/v1/explore/map"), once("/v1/explore/labels")]);
  const canvas = h("canvas", { class: "points" }), overlay = h("canvas", { class: "names" });
  const inView = h("ul", { class: "rows grid", id: "in-view", tabindex: "0", "aria-label": "Points in view" }), total = h("p", { class: "soft", role: "status" });
  const about_ = h("div", { id: "about" }), legend = h("p", { class: "legend", id: "map-legend" }), tip = h("div", { class: "tip", hidden: "" });
  const box = h("div", { class: "plane", id: "plane", tabindex: "0", role: "application", "aria-label": "Map of the embeddings. Arrow keys move, plus and minus zoom, Enter chooses the most popular point near the middle. The list below has the points in view." }, canvas, overlay, tip);
  const plane = new Plane(canvas, overlay, { x: Float32Array.from(data.x, (v) => v / 65535), y: Float32Array.from(data.y, (v) => 1 - v / 65535), users: data.users, weight: Uint32Array.from(data.degree) });
  const side = (at) => (at < data.users ? "user" : "item"), key = (at) => `${side(at)}:${labels.ids[at]}`;
  plane.label = (at) => String(labels.ids[at]);
  const varying = widest(data.gates);
  const state = { colour: value("colour") || "cluster", show: value("show") || "both", find: value("find"), node: value("node"), at: value("at") };

  const keep = () => {
    if (here().view !== "map") return; // another view is on its way
    const { x, y, zoom } = plane.camera, moved = zoom !== 1 || x !== 0.5 || y !== 0.5;
    state.at = moved ? [x.toFixed(4), y.toFixed(4), zoom.toPrecision(3)].join(" ") : "";
    note(address("map", [], { colour: state.colour === "cluster" ? "" : state.colour, show: state.show === "both" ? "" : state.show, find: state.find, node: state.node, at: state.at }));
    list();
  };
  let resting;
  const rest = () => { clearTimeout(resting); resting = setTimeout(() => { plane.moving = false; plane.draw(); keep(); }, 140); };
  const moved = () => { plane.moving = true; plane.draw(); rest(); };

  function paint() {
    const theme = dark.matches ? "dark" : "light", [r, g, b] = rgb(css("--card"));
    plane.paper = (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    [plane.paperCss, plane.ink] = [css("--card"), css("--ink")];
    if (state.colour === "cluster") {
      (dark.matches ? CLUSTER_DARK : CLUSTER_LIGHT).forEach((hex, at) => plane.palette.set(rgb(hex), 3 * at));
      plane.colour.set(data.cluster);
    } else {
      ramp(RAMPS[state.colour][theme], 101).forEach((colour, at) => plane.palette.set(colour, 3 * at));
      const largest = Math.log1p(data.degree.reduce((one, other) => Math.max(one, other), 1));
      if (state.colour === "gate") plane.colour.set(data.gates[varying].percent);
      else plane.colour.set(data.degree.map((degree) => Math.round((100 * Math.log1p(degree)) / largest)));
    }
    legend.replaceChildren(...legendOf());
    plane.draw();
  }
  function legendOf() {
    const swatch = (at) => { const each = h("i", { class: "swatch" }); each.style.background = `rgb(${plane.palette.slice(3 * at, 3 * at + 3).join(" ")})`; return each; };
    const shapes = h("span", {}, "● user  ◆ item");
    if (state.colour === "cluster") return [shapes, ...data.clusters.map((cluster, at) => h("span", {}, swatch(at), `${cluster.items.slice(0, 2).join(", ") || "users only"} (${cluster.nodes.toLocaleString("en")})`))];
    const [low, high] = state.colour === "gate" ? ["linear", `non-linear at layer ${data.gates[varying].layer}`] : ["few interactions", "many"];
    return [shapes, h("span", {}, low, " ", [0, 25, 50, 75, 100].map(swatch), " ", high)];
  }
  function filter() {
    const wanted = state.find.trim().toLowerCase();
    plane.found = 0;
    for (let at = 0; at < plane.count; at++) {
      const hidden = state.show !== "both" && state.show !== `${side(at)}s`;
      const has = wanted && (String(labels.ids[at]).toLowerCase().includes(wanted) || labels.names?.[at]?.toLowerCase().includes(wanted));
      plane.level[at] = hidden ? 0 : has ? 2 : 1;
      if (has && !hidden) plane.found++;
    }
    for (const at of [plane.selected, ...plane.near]) if (at >= 0) plane.level[at] = 2;
    plane.draw();
  }
  function list() {
    const { shown, total: all } = plane.inView(LISTED);
    total.textContent = `${count(all, state.find ? "matching point" : "point")} in view${all > shown.length ? `; the ${shown.length} most popular:` : ":"}`;
    inView.replaceChildren(...shown.map((at) => h("li", {}, h("button", { type: "button", class: "row", click: () => choose(at, true) },
      h("span", { class: "id" }, plane.label(at)), labels.names?.[at] && h("span", { class: "name" }, labels.names[at]), h("span", { class: "remark" }, `${side(at)}, ${data.degree[at].toLocaleString("en")}`)))));
  }
  let asked = 0;
  async function choose(at, fly) {
    const mine = ++asked;
    plane.selected = at;
    plane.near = [];
    state.node = at >= 0 ? key(at) : "";
    filter();
    if (at < 0) { about_.replaceChildren(h("p", {}, "Choose a point to see its neighbours."), h("p", { class: "soft" }, "Drag to move, scroll or pinch to zoom.")); keep(); return; }
    about_.replaceChildren(h("h2", {}, plane.label(at)), h("p", { class: "soft" }, "Looking for its neighbours …"));
    if (fly) flyTo(at);
    keep();
    try {
      const found = await node(side(at), labels.ids[at]);
      if (mine !== asked) return;
      const place = new Map(labels.ids.slice(side(at) === "user" ? 0 : data.users, side(at) === "user" ? data.users : undefined).map((id, k) => [String(id), k + (side(at) === "user" ? 0 : data.users)]));
      plane.near = found.similar.map((each) => place.get(String(each.id)) ?? -1).filter((each) => each >= 0);
      filter();
      about_.replaceChildren(h("p", { class: "kicker" }, found.side), h("h2", {}, String(found.id)), found.name && h("p", { class: "soft" }, found.name),
        h("p", {}, `${count(found.degree, "training interaction")}${data.gates.length ? `, ${percent(data.gates[varying].percent[at] / 100)} non-linear` : ""}`),
        h("p", { class: "actions" }, h("a", { class: "button primary", href: toNode(found.side, found.id) }, "Open"), h("button", { type: "button", class: "quiet", click: () => choose(-1) }, "Clear")),
        h("h3", {}, "Nearest in the embedding space"), h("ol", { class: "rows whole", id: "near" }, rows(found.similar, { href: (each) => toNode(found.side, each.id), value: (each) => each.score })));
    } catch (error) { say(error.message); }
  }
  function flyTo(at) {
    const from = { ...plane.camera }, to = { x: plane.x[at], y: plane.y[at], zoom: Math.max(from.zoom, 5) };
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) { Object.assign(plane.camera, to); moved(); return; }
    const began = performance.now(), step = (now) => {
      const part = Math.min(1, Math.max(0, (now - began) / 450)), eased = 1 - (1 - part) ** 3;
      plane.camera.zoom = from.zoom * (to.zoom / from.zoom) ** eased;
      plane.camera.x = from.x + (to.x - from.x) * eased;
      plane.camera.y = from.y + (to.y - from.y) * eased;
      moved();
      if (part < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  const pointers = new Map();
  let dragged = 0;
  const place = (event) => { const { left, top } = box.getBoundingClientRect(); return [event.clientX - left, event.clientY - top]; };
  box.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, place(event)); dragged = 0; overlay.setPointerCapture(event.pointerId); });
  box.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (dragged < 5 && event.target === overlay) { const at = plane.at(...place(event)); if (at >= 0) choose(at, false); }
  });
  box.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  box.addEventListener("pointermove", (event) => {
    const [x, y] = place(event), old = pointers.get(event.pointerId);
    if (old) {
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, where]) => where);
      if (others.length) plane.zoomAt((x + others[0][0]) / 2, (y + others[0][1]) / 2, Math.hypot(x - others[0][0], y - others[0][1]) / Math.max(1, Math.hypot(old[0] - others[0][0], old[1] - others[0][1])));
      else plane.pan(x - old[0], y - old[1]);
      dragged += Math.abs(x - old[0]) + Math.abs(y - old[1]);
      pointers.set(event.pointerId, [x, y]);
      moved();
      return;
    }
    const at = plane.at(x, y);
    if (at !== plane.hovered) {
      plane.hovered = at;
      overlay.classList.toggle("pointing", at >= 0);
      tip.hidden = at < 0;
      if (at >= 0) {
        tip.replaceChildren(h("b", {}, plane.label(at)), ` ${side(at)}, ${data.degree[at].toLocaleString("en")}`, labels.names?.[at] ? h("br", {}) : "", labels.names?.[at] ?? "");
        tip.style.transform = `translate(${Math.min(plane.screenX(at) + 12, plane.width - 240)}px, ${plane.screenY(at) + 14}px)`;
      }
      plane.draw();
    }
  });
  box.addEventListener("wheel", (event) => { event.preventDefault(); plane.zoomAt(...place(event), Math.exp(-event.deltaY / 400)); moved(); }, { passive: false });
  box.addEventListener("keydown", (event) => {
    const step = 60, moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.key in moves) plane.pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") home();
    else if (event.key === "Enter") {
      const { shown } = plane.inView(200), far = (at) => Math.hypot(plane.screenX(at) - plane.width / 2, plane.screenY(at) - plane.height / 2);
      if (shown.length) choose(shown.reduce((one, other) => (far(other) < far(one) ? other : one)), false);
    } else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
    moved();
  });
  const zoom = (factor) => { plane.zoomAt(plane.width / 2, plane.height / 2, factor); moved(); };
  const home = () => { Object.assign(plane.camera, { x: 0.5, y: 0.5, zoom: 1 }); moved(); };

  const option = (name, choices, change) => h("fieldset", { class: "segments" }, h("legend", { class: "hidden" }, name), choices.map(([id, text]) => h("label", {},
    h("input", { type: "radio", name, value: id, checked: state[name] === id && "", change: () => { state[name] = id; change(); keep(); } }), h("span", {}, text))));
  const button = (text, label, click) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, click }, text);
  const search = h("input", { id: "map-find", type: "search", placeholder: "Find on the map", "aria-label": "Find on the map", value: state.find, maxlength: 100,
    input: (event) => { state.find = event.target.value; filter(); keep(); },
    keydown: (event) => { if (event.key === "Enter") { const { shown } = plane.inView(1); if (shown.length) choose(shown[0], true); } } });
  const content = [
    h("div", { class: "tools" }, h("h1", {}, "Map"), search,
      option("colour", [["cluster", "Cluster"], ["popularity", "Popularity"], ...(data.gates.length ? [["gate", "Gate"]] : [])], paint),
      option("show", [["both", "All"], ["items", "Items"], ["users", "Users"]], filter),
      h("span", { class: "zoom" }, button("+", "Zoom in", () => zoom(1.6)), button("−", "Zoom out", () => zoom(1 / 1.6)), button("⟲", "Show everything", home))),
    legend,
    h("div", { class: "mapped" }, h("div", {}, box), h("div", { class: "card", "aria-live": "polite" }, about_)),
    h("section", { class: "card" }, h("h2", {}, "In view"), total, inView),
    h("p", { class: "soft" }, `${data.nodes ? `${count(plane.count, "node")}, sampled evenly from the least to the most popular` : `All ${count(plane.count, "node")}`}, laid out by t-SNE: what is close together has similar embeddings. Distances between groups mean little.`),
  ];
  if (state.at) { const [x, y, zoomed] = state.at.split(" ").map(Number); if ([x, y, zoomed].every(Number.isFinite)) { Object.assign(plane.camera, { x, y, zoom: Math.max(0.8, Math.min(400, zoomed)) }); plane._keepInside(); } }
  const watcher = new ResizeObserver(() => { plane.resize(); list(); });
  queueMicrotask(() => {
    plane.found = 0;
    paint();
    filter();
    watcher.observe(box);
    const chosen = state.node ? Array.from({ length: plane.count }, (_, at) => at).find((at) => key(at) === state.node) ?? -1 : -1;
    choose(chosen, chosen >= 0 && !state.at);
  });
  dark.addEventListener("change", paint);
  box.plane = plane; // what benchmarks and tests ask
  content.leave = () => { watcher.disconnect(); dark.removeEventListener("change", paint); clearTimeout(resting); };
  return content;
}

/** The gated layer whose probabilities differ most between nodes. */
export function widest(gates) {
  const spread = gates.map(({ percent: values }) => { const mean = values.reduce((a, b) => a + b, 0) / values.length; return values.reduce((sum, v) => sum + (v - mean) ** 2, 0); });
  return spread.indexOf(Math.max(...spread));
}
