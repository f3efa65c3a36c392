// The gate map: degree against the gate's choice, one layer at a time.
import { call } from "./api.js";
import { empty, h, percent, s } from "./dom.js";
import { widest } from "./map.js";
import { address, go, note, toNode } from "./router.js";

const CLASSES = { FL: "always linear", PNL: "mixed", FNL: "always non-linear" };
const SHAPES = { // drawn around the origin: the class shows without its colour
  FL: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", PNL: "M0 -5L4.5 3.5H-4.5Z", FNL: "M-3.5 -3.5H3.5V3.5H-3.5Z",
};

export async function showGates({ value }) {
  const map = await call("/v1/overview?limit=1500");
  if (!map.layers.length) return [empty("This model has no gates", "Every node takes the same steps, so there is no choice to show.")];
  const varying = widest(map.layers.map((_, at) => ({ percent: map.sample.map((node) => node.probability[at]) })));
  const asked = map.layers.indexOf(Number(value("layer")));
  const about = h("section", { class: "card", "aria-live": "polite" }, h("p", { class: "soft" }, "Choose a dot, or move with the arrow keys and press Enter."));
  const place = h("div", { class: "card" });
  const select = h("select", { id: "layer", change: () => { note(address("gates", [], { layer: map.layers[select.value] })); draw(); } },
    map.layers.map((layer, at) => h("option", { value: at, selected: at === (asked < 0 ? varying : asked) && "" }, `layer ${layer}: ${percent(map.nonlinear_share[layer])} non-linear`)));
  const draw = () => place.replaceChildren(gatePicture(map.sample, Number(select.value), (node) => about.replaceChildren(...describe(node, map.layers))));
  draw();
  const legend = Object.entries(CLASSES).map(([name, text]) =>
    h("span", {}, s("svg", { viewBox: "-9 -6 18 12", "aria-hidden": "true" }, s("path", { class: `dot ${name}`, d: SHAPES[name] })), `${name}: ${text}, ${map.classes[name].toLocaleString("en")}`));
  return [
    h("div", { class: "heading" }, h("p", { class: "kicker" }, "Gates"), h("h1", {}, "Who takes the non-linear branch?"),
      h("p", { class: "soft" }, "Each dot is a user or an item. Above the dashed line, its gate chose the non-linear branch.")),
    h("div", { class: "tools" }, h("span", {}, h("label", { for: "layer" }, "Gate of "), select)),
    h("p", { class: "legend" }, legend), place,
    h("p", { class: "soft" }, map.sample.length < map.nodes ? `${map.sample.length.toLocaleString("en")} of ${map.nodes.toLocaleString("en")} nodes, sampled evenly from the least to the most popular` : `All ${map.nodes.toLocaleString("en")} nodes`), about];
}

/** Round numbers between two, each a power of ten times one of `steps`; the two themselves where fewer lie between. */
function ticks(least, most, steps) {
  const powers = Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, at) => 10 ** at);
  const round = powers.flatMap((power) => steps.map((step) => step * power)).filter((tick) => least <= tick && tick <= most);
  return round.length > 1 ? round : [least, most];
}

function gatePicture(sample, layer, show) {
  const width = matchMedia("(max-width: 44rem)").matches ? 400 : 1000; // fewer units on a phone, so that words stay legible
  const [height, left, bottom, top] = [400, 48, 44, 12];
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
    s("text", { x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, tick.toLocaleString("en")));
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
    else if (event.key === "Enter" && here >= 0) go(toNode(nodes[here].side, nodes[here].id));
    else return;
    event.preventDefault();
  }
  return picture;
}

const describe = (node, layers) => [
  h("h2", {}, String(node.id), " ", h("span", { class: "note" }, `${node.side}, degree ${node.degree.toLocaleString("en")}, ${CLASSES[node.class]}`)),
  h("table", {}, h("thead", {}, h("tr", {}, ["layer", "P(non-linear)", "branch"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, layers.map((layer, at) => h("tr", {}, h("td", {}, String(layer)), h("td", {}, node.probability[at].toFixed(3)),
      h("td", {}, node.nonlinear[at] ? "non-linear" : "linear"))))),
  h("p", {}, h("a", { class: "button primary", href: toNode(node.side, node.id) }, `See the ${node.side}`)),
];
