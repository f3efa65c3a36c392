// A user: what they are recommended, what they have, and why.
import { about, call, find } from "./api.js";
import { card, count, h } from "./dom.js";
import { explanation } from "./explanation.js";
import { rows } from "./lists.js";
import { address, toItem, toUser } from "./router.js";

/** The heading of every page about one user, with the ways to look at them. */
export async function userHeading(id, current) {
  const [model, [own]] = await Promise.all([about(), find("user", id, 1)]); // the id itself comes before longer ones
  const name = String(own?.user) === id ? own.name : null;
  const tabs = [["recommendations", toUser(id), "Recommendations"], ["what-if", address("what-if", [id]), "What if?"],
    model.compared.length > 0 && ["compare", address("compare", [id]), "Compare runs"]].filter(Boolean);
  return h("div", { class: "heading" }, h("p", { class: "kicker" }, "User"), h("h1", {}, id), name && h("p", { class: "soft" }, name),
    h("nav", { class: "tabs", "aria-label": `Views of ${id}` }, tabs.map(([key, href, text]) =>
      h("a", { href, "aria-current": key === current && "page" }, text))));
}

export async function showUser({ parts: [id, item] }) {
  const [history, [answer], why] = await Promise.all([
    call(`/v1/history?user=${encodeURIComponent(id)}`), call("/v1/recommend", { users: [id], k: 20 }),
    item === undefined ? null : call("/v1/explain", { user: id, item })]);
  const items = answer.items.map((entry) => ({ ...entry, id: entry.item }));
  const had = card(`What ${id} has`, count(history.length, "item"), h("ul", { class: `rows ${why ? "grid" : "long"}`, "aria-label": `What ${id} has`, tabindex: "0" },
    rows(history.map((entry) => ({ ...entry, id: entry.item })), { href: (entry) => toItem(entry.id) })));
  return [
    await userHeading(id, "recommendations"),
    h("div", { class: `columns ${why ? "explained" : ""}` },
      card("Recommended", `best ${items.length}`, h("p", { class: "soft" }, "Choose one to see why."),
        h("ol", { class: "rows ranked whole", id: "recommended" }, rows(items, {
          value: (entry) => entry.score, href: (entry) => address("user", [id, entry.id]), current: (entry) => String(entry.id) === item }))),
      why ? explanation(why, address("user", [id])) : had),
    why && had,
  ];
}
