// An item: its popularity, what is like it, who has it, and how the graph reaches it.
import { about, node } from "./api.js";
import { card, count, h, ordinal, percent, s } from "./dom.js";
import { rows } from "./lists.js";
import { address, toItem, toUser } from "./router.js";

export async function showItem({ parts: [id] }) {
  const [item, model] = await Promise.all([node("item", id), about()]);
  const { users, items } = model.data;
  return [
    h("div", { class: "heading" }, h("p", { class: "kicker" }, "Item"), h("h1", {}, id), item.name && h("p", { class: "soft" }, item.name),
      h("ul", { class: "facts" },
        h("li", {}, h("b", {}, item.degree.toLocaleString("en")), " training interactions"),
        h("li", {}, h("b", {}, ordinal(item.rank)), ` of ${count(item.of, "item")} by popularity`),
        h("li", {}, h("b", {}, percent(item.degree / users)), " of users have it"),
        item.gates.map((gate) => h("li", {}, h("b", {}, gate.nonlinear ? "non-linear" : "linear"), ` at layer ${gate.layer} (${percent(gate.nonlinear ? gate.probability : 1 - gate.probability)})`))),
      h("p", { class: "actions" }, h("a", { class: "button primary", href: address("new", [[id]]) }, "Recommend to someone who has it"),
        model.mapped && h("a", { class: "button", href: address("map", [], { node: `item:${id}` }) }, "Show on the map"))),
    h("div", { class: "columns" },
      card("Similar items", model.mapped ? "by cosine" : "by weight", item.similar.length
        ? h("ol", { class: "rows whole", id: "similar" }, rows(item.similar, { href: (each) => toItem(each.id), value: (each) => each.score })) : h("p", { class: "soft" }, "Nothing is similar to it.")),
      card("Who has it", item.joined.length < item.degree ? `${item.joined.length} of ${item.degree.toLocaleString("en")}` : count(item.degree, "user"), item.joined.length
        ? h("ul", { class: "rows", id: "joined", tabindex: "0", "aria-label": "Who has it" }, rows(item.joined, { href: (each) => toUser(each.id), note: (each) => count(each.degree, "item") }))
        : h("p", { class: "soft" }, "Nobody has it in the training part, so the graph does not reach it."))),
    item.degree > 0 && card("How the graph reaches it", "", h("p", {}, reachWords(item, users, items)),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Strongest paths" }, pathsPicture(item)),
      h("p", { class: "soft" }, "Items that share users with it, the strongest first, and the users who join them most. A user with few items joins more strongly than one with many.")),
  ];
}

function reachWords(item, users, items) {
  const [one, two, three, four] = item.reach;
  return `One step away: ${count(one, "user")}. Two: ${count(two, "item")}, ${percent(two / Math.max(1, items - 1))} of all. `
    + `Three: ${count(three, "more user")}${four ? `. Four: ${count(four, "more item")}` : ""}. A model of ${four ? "four" : "three"} layers sees ${percent((one + three) / users)} of the users from here.`;
}

function pathsPicture({ id, paths: { between, far: all, joined: pairs } }) {
  const reached = [...new Set(pairs.map(([, to]) => to))].sort((one, other) => one - other); // the strongest users may not join all
  const paths = { between, far: reached.map((to) => all[to]), joined: pairs.map(([at, to]) => [at, reached.indexOf(to)]) };
  const wide = !matchMedia("(max-width: 60rem)").matches;
  const [width, line] = [wide ? 1040 : 760, 30], height = Math.max(paths.far.length, paths.between.length, 1) * line + 20;
  const y = (at, of) => height / 2 + (at - (of - 1) / 2) * line;
  const short = (text) => (String(text).length > 26 ? `${String(text).slice(0, 25)}…` : String(text));
  const picture = s("svg", { class: "paths", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Two steps from ${id}: ${paths.far.map((each) => each.id).join(", ")}` });
  picture.style.minWidth = "560px";
  const curve = (x0, y0, x1, y1) => `M${x0} ${y0}C${(x0 + x1) / 2} ${y0} ${(x0 + x1) / 2} ${y1} ${x1} ${y1}`;
  const [xs, xb, xf] = wide ? [200, 510, 820] : [150, 350, 540];
  paths.between.forEach((user, at) => picture.append(s("path", { class: "edge", d: curve(xs, height / 2, xb, y(at, paths.between.length)) })));
  const most = Math.max(...paths.far.map((each) => each.score), 1e-12);
  for (const [at, to] of paths.joined) picture.append(s("path", { class: "edge", "stroke-width": 0.8 + (1.6 * paths.far[to].score) / most, d: curve(xb, y(at, paths.between.length), xf, y(to, paths.far.length)) }));
  picture.append(s("circle", { class: "node", cx: xs, cy: height / 2, r: 7 }), s("text", { class: "lane", x: xs - 14, y: height / 2 + 4, "text-anchor": "end" }, short(id)));
  paths.between.forEach((user, at) => picture.append(s("circle", { class: "node", cx: xb, cy: y(at, paths.between.length), r: 5 }),
    s("text", { class: "over", x: xb, y: y(at, paths.between.length) - 9, "text-anchor": "middle" }, short(user.id))));
  paths.far.forEach((item, at) => picture.append(s("circle", { class: "node", cx: xf, cy: y(at, paths.far.length), r: 6 }),
    s("text", { x: xf + 14, y: y(at, paths.far.length) + 4 }, short(item.id))));
  return picture;
}
