// Why an item is recommended: the sentence, the waterfall by item, the path and the waterfall by layer.
import { digits, h, percent, s } from "./dom.js";
import { pathPicture, step } from "./path.js";
import { toItem } from "./router.js";
import { waterfall } from "./waterfall.js";

const SHOWN = 8; // items of each sign with a bar of their own
const NAMED = 3; // items that the sentence names, as in recommend/explanation.py

/** Items that speak for the score first, those against it next, the remainder last: all of it adds up to the score. */
function byItem(why, all) {
  const sign = why.score > 0 ? 1 : -1;
  const part = (each) => ({ label: String(each.item), title: each.name, href: toItem(each.item), value: each.contribution });
  const sides = [sign, -sign].map((side) => why.carried_by.filter((each) => side * each.contribution > 0).map(part));
  const named = Math.min(NAMED, sides[0].length);
  const share = why.score ? sides[0].slice(0, named).reduce((sum, each) => sum + each.value, 0) / why.score : 0;
  sides[0].slice(0, named).forEach((each) => { each.named = true; });
  if (named && why.score) sides[0][named - 1].note = `${named > 1 ? `these ${named}: ` : ""}${percent(share)} of the score`;
  const parts = sides.flatMap((each, side) => {
    if (all || each.length <= SHOWN + 1) return each;
    const rest = each.slice(SHOWN);
    return [...each.slice(0, SHOWN), { label: `${rest.length} more that ${(side === 0) === (sign > 0) ? "add" : "subtract"}`, soft: true,
      value: rest.reduce((sum, one) => sum + one.value, 0) }];
  });
  if (why.remainder) parts.push({ label: "the user’s own embedding", title: "what no single item brings: what training learned about the user, and what items bring only together", soft: true, value: why.remainder });
  return [...parts, ...popularity(why)];
}

/** What the item's popularity adds for everyone, if the model adds it. */
function popularity(why) {
  return why.from_popularity ? [{ label: "the item’s popularity", title: "what the item’s popularity adds for everyone, compared with the items of a typical interaction", soft: true, value: why.from_popularity }] : [];
}

export function explanation(why, back) {
  const many = why.carried_by.length > 2 * (SHOWN + 1), nonlinear = why.gates.length > 0;
  const place = h("div", {});
  const draw = (all) => place.replaceChildren(waterfall("What each item adds to the score", byItem(why, all), why.score));
  draw(false);
  const more = many && h("button", { type: "button", class: "quiet", "aria-pressed": "false", click: ({ currentTarget: button }) => {
    const all = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(all));
    button.textContent = all ? "Show the largest only" : `Show all ${why.carried_by.length} items`;
    draw(all);
  } }, `Show all ${why.carried_by.length} items`);
  const sample = (waves) => s("svg", { class: "path", viewBox: "0 0 36 18", "aria-hidden": "true" }, s("path", { class: `step ${waves ? "nonlinear" : ""}`, d: step(2, 34, 9, waves) }));
  return h("section", { id: "explanation", class: "card", "aria-labelledby": "why", tabindex: "-1" },
    h("div", { class: "between" }, h("h2", { id: "why" }, "Why ", h("a", { href: toItem(why.item) }, String(why.item)), "?"), h("a", { href: back, class: "close", "aria-label": "Close the explanation" }, "Close")),
    why.name && h("p", { class: "soft" }, why.name),
    h("p", { class: "sentence" }, why.sentence),
    h("h3", {}, "What each item adds"), place, more,
    why.layers.length > 1 && [
      h("h3", {}, "The path through the layers"),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Path through the layers" }, pathPicture(why)),
      nonlinear && h("p", { class: "legend" }, h("span", {}, sample(false), "linear step"), h("span", {}, sample(true), "non-linear step"), h("span", {}, "%: how sure the gate is")),
      h("h3", {}, "What each layer adds"),
      waterfall("What each layer adds to the score", [...why.layers.map(({ layer, contribution }) => ({ label: `layer ${layer}`, value: contribution })), ...popularity(why)], why.score)],
    h("p", { class: "soft" }, `${why.layers.length > 1 ? "Both" : "The parts"} add up to the score, ${digits(why.score)}.`));
}
