// "What if?": other items of a user or a newcomer, and how the list moves.
import { call, withName } from "./api.js";
import { chooser } from "./chooser.js";
import { card, digits, h, named, say } from "./dom.js";
import { sliding } from "./lists.js";
import { address, go, list, toItem } from "./router.js";
import { userHeading } from "./user.js";

const move = (entry, changed) => {
  if (!changed) return null;
  if (entry.was === null) return h("span", { class: "move up" }, "new");
  return entry.move > 0 ? h("span", { class: "move up" }, `▲ ${entry.move}`) : entry.move < 0 ? h("span", { class: "move down" }, `▼ ${-entry.move}`) : h("span", { class: "move" }, "=");
};

function movedList(moves, changed) {
  const items = moves.items.map((entry, at) => ({ ...entry, move: entry.was === null ? 0 : entry.was - (at + 1) }));
  return [
    h("ol", { class: "rows ranked whole", id: "recommended" }, items.map((entry) => h("li", { "data-key": entry.item },
      h("a", { class: "row", href: toItem(entry.item) }, named(entry.item, entry.name), h("span", { class: "value" }, digits(entry.score)), move(entry, changed))))),
    changed && moves.left.length > 0 && [h("h3", {}, "No longer in the list"), h("ul", { class: "tags" }, moves.left.map((entry) =>
      h("li", {}, h("a", { href: toItem(entry.item), title: entry.name }, String(entry.item), h("span", { class: "note" }, ` ${entry.was} → ${entry.now ?? "beyond 200"}`)))))],
  ];
}

/** Items as buttons that take away and give back; `added` ones can be removed altogether. */
const toggles = (own, added, without, change) => h("ul", { class: "chips", "aria-label": "Items" },
  [...added.map((item) => [item, true]), ...own.map((item) => [item, false])].map(([item, isNew]) => {
    const off = without.includes(item);
    return h("li", {}, h("button", { type: "button", class: isNew ? "added" : off ? "off" : "", "aria-label": off ? `Give ${item} back` : `Remove ${item}`,
      click: () => change(item, isNew, off) }, isNew && "+ ", item, h("span", { "aria-hidden": "true" }, off ? " ↺" : " ×")));
  }));

const share = () => h("button", { type: "button", class: "quiet", click: async () => {
  try { await navigator.clipboard.writeText(location.href); say("The link is copied."); } catch { say(location.href); }
} }, "Copy the link");

export async function showWhatIf({ parts: [id], query }, previous) {
  const add = list(query.add), without = list(query.without);
  const [moves, history] = await Promise.all([call("/v1/explore/what-if", { user: id, add, without, k: 20 }), call(`/v1/history?user=${encodeURIComponent(id)}&limit=1000`)]);
  const to = (added, taken) => go(address("what-if", [id], { add: added, without: taken }));
  const own = history.map((entry) => String(entry.item));
  return page(await userHeading(id, "what-if"), `What ${id} has`, moves, previous, { own, add, without,
    pick: (item) => (without.includes(item) ? to(add, without.filter((each) => each !== item)) : own.includes(item) || add.includes(item) ? say(`${id} has ${item} already.`) : to([...add, item], without)),
    change: (item, isNew, off) => (isNew ? to(add.filter((each) => each !== item), without) : to(add, off ? without.filter((each) => each !== item) : [...without, item])),
    reset: address("what-if", [id]) });
}

export async function showNew({ raw: [text], query }, previous) {
  const own = list(text), without = list(query.without);
  const to = (items, taken) => go(address("new", items.length ? [items] : [], { without: taken }));
  const pick = (item) => (own.includes(item) ? to(own, without.filter((each) => each !== item)) : to([...own, item], without));
  const heading = h("div", { class: "heading" }, h("p", { class: "kicker" }, "Someone new"), h("h1", {}, "What would you recommend to a stranger?"),
    h("p", { class: "soft" }, "The model has never seen this person. It computes an embedding from the items they have."));
  if (!own.length) {
    const popular = (await call("/v1/explore/start")).popular;
    return [heading, chooser("item", ["item"], "What do they have?", "Type an item to add it", (side, item) => pick(item)),
      card("Or begin with one of these", "", h("ul", { class: "chips" }, popular.map((item) =>
        h("li", {}, h("button", { type: "button", click: () => pick(String(item.id)) }, "+ ", String(item.id))))))];
  }
  if (own.every((item) => without.includes(item))) return page(heading, "What they have", { items: [], left: [] }, previous, options());
  return page(heading, "What they have", await call("/v1/explore/what-if", { items: own, without, k: 20 }), previous, options());
  function options() {
    return { own, add: [], without, pick, reset: address("new", [own]), forget: true,
      change: (item, isNew, off) => to(own, off ? without.filter((each) => each !== item) : [...without, item]) };
  }
}

async function page(heading, title, moves, previous, { own, add, without, pick, change, reset, forget }) {
  const changed = add.length + without.length > 0;
  const names = forget ? await Promise.all(own.filter((item) => !without.includes(item)).slice(0, 30).map(withName)) : [];
  const result = h("div", {});
  const content = movedList(moves, changed).flat(2).filter(Boolean);
  if (previous) result.append(...previous.querySelectorAll("#moved > div > *")); // the rows slide from where they were
  queueMicrotask(() => sliding(result, () => result.replaceChildren(...(moves.items.length ? content : [h("p", { class: "soft" }, "Nothing is left to recommend from: give an item back.")]))));
  return [heading, h("div", { class: "columns" },
    card(title, `${own.length}${add.length ? ` + ${add.length}` : ""}${without.length ? ` − ${without.length}` : ""}`,
      chooser("item", ["item"], "Add an item", "Type an item to add it", (side, item) => pick(item)),
      toggles(own, add, without, change),
      h("p", { class: "soft" }, "Choose an item to take it away, and again to give it back."),
      h("p", { class: "actions" }, changed && h("a", { class: "button", href: reset }, "Undo all"), forget && h("a", { class: "button", href: address("new") }, "Start over"), share()),
      names.some((each) => each.name) && h("ul", { class: "rows", "aria-label": title, tabindex: "0" }, names.map((each) => h("li", {}, h("div", { class: "row" }, named(each.item, each.name)))))),
    h("section", { class: "card", id: "moved", "aria-live": "polite" }, h("h2", {}, "Recommended ", h("span", { class: "note" }, changed ? "and how each has moved" : `best ${moves.items.length}`)), result))];
}
