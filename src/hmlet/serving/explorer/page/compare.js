// Two runs side by side for one user: ranks joined by lines, held-out hits marked.
import { about, call } from "./api.js";
import { count, empty, h, s } from "./dom.js";
import { address, go, toItem } from "./router.js";
import { userHeading } from "./user.js";

const LINE = 44, GAP = 4; // pixels of a row, and what of it is space

export async function showCompare({ parts: [id], value }) {
  const model = await about();
  if (!model.compared.length) return [await userHeading(id, "compare"), empty("There is no second run", "Start the service with one to compare with: hmlet serve RUN --compare OTHER")];
  const answer = await call(`/v1/explore/compare?user=${encodeURIComponent(id)}`);
  const [one, ...others] = answer.runs;
  const other = others.find((each) => each.name === value("run")) ?? others[0];
  const shared = new Set(one.items.map((each) => String(each.item)).filter((item) => other.items.some((each) => String(each.item) === item)));
  const hits = (run) => run.items.filter((each) => each.hit).length;
  const select = others.length > 1 && h("label", { class: "inline" }, "Compare with ", h("select", { id: "other", change: (event) => go(address("compare", [id], { run: event.target.value })) },
    others.map((each) => h("option", { value: each.name, selected: each === other && "" }, each.name))));
  return [
    await userHeading(id, "compare"),
    h("section", { class: "card" },
      h("p", { class: "sentence" }, `The two lists share ${shared.size} of ${one.items.length} items. `, answer.held_out
        ? `Of ${count(answer.held_out, "held-out item")}, ${one.name} finds ${hits(one)} and ${other.name} ${hits(other)}.` : "No items of this user were held out, so there are no hits to compare."),
      h("p", { class: "legend" }, answer.held_out > 0 && h("span", {}, h("span", { class: "hit", "aria-hidden": "true" }, "✓"), " held-out item"), h("span", {}, "Training items are left out, as in an evaluation."), select),
      h("div", { class: "versus" }, column(one), lines(one, other), column(other))),
  ];
}

const light = (item, on) => { for (const each of document.querySelectorAll("[data-item]")) each.classList.toggle("lit", on && each.dataset.item === item); };

const column = (run) => h("div", {}, h("h2", { title: run.model }, run.name), h("ol", { class: "versus-list", "aria-label": run.name }, run.items.map((each, at) => {
  const item = String(each.item), watch = { mouseenter: () => light(item, true), mouseleave: () => light(item, false), focus: () => light(item, true), blur: () => light(item, false) };
  return h("li", {}, h("a", { href: toItem(item), "data-item": item, class: each.hit ? "is-hit" : "", title: each.name ? `${item}: ${each.name}` : item, ...watch },
    h("span", { class: "rank" }, String(at + 1)), h("span", { class: "id" }, item), each.hit && h("span", { class: "hit" }, h("span", { "aria-hidden": "true" }, "✓"), h("span", { class: "hidden" }, "held-out hit"))));
})));

function lines(one, other) {
  const height = LINE * Math.max(one.items.length, other.items.length);
  const picture = s("svg", { class: "lines", viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.style.height = `${height}px`;
  one.items.forEach((each, from) => {
    const to = other.items.findIndex((entry) => entry.item === each.item);
    if (to < 0) return;
    const [y0, y1] = [from, to].map((at) => (at + 0.5) * LINE - GAP / 2);
    picture.append(s("path", { class: each.hit ? "is-hit" : "", "data-item": each.item, d: `M0 ${y0}C50 ${y0} 50 ${y1} 100 ${y1}`, "vector-effect": "non-scaling-stroke" }));
  });
  return h("div", { class: "lines-box" }, h("h2", { "aria-hidden": "true" }, " "), picture);
}
