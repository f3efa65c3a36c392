// The first page: users worth a look, and ways in.
import { about, once } from "./api.js";
import { count, h, percent } from "./dom.js";
import { rows } from "./lists.js";
import { address, toItem, toUser } from "./router.js";

export async function showStart() {
  const [model, start] = await Promise.all([about(), once("/v1/explore/start")]);
  const group = (title, text, users, note) => h("section", { class: "card" }, h("h2", {}, title), h("p", { class: "soft" }, text),
    h("ul", { class: "rows whole" }, rows(users.map((user) => ({ ...user, id: user.user })), { href: (user) => toUser(user.id), note })));
  const ways = [
    [address("new"), "Someone new", "Pick a few items and see what the model recommends to a person it has never met."],
    model.mapped && [address("map"), "The map", `All ${count(model.data.users + model.data.items, "embedding")} in one picture.`],
    model.gated_layers.length > 0 && [address("gates"), "The gates", "Which nodes go the linear way, and which the non-linear one."],
  ].filter(Boolean);
  return [
    h("section", { class: "hero" }, h("h1", {}, "Look inside the recommendations"),
      h("p", {}, `${model.model} learned from what ${count(model.data.users, "user")} of ${model.data.name} have among ${count(model.data.items, "item")}. Start with someone interesting.`)),
    h("div", { class: "thirds" },
      start.hits.length > 0 && group("Most hits", `Their best ${start.list_length} contain the most items that were held out from training.`,
        start.hits, (user) => `${user.hits} of ${user.held_out} found`),
      group("Most surprising", "They get what hardly anyone else gets: their items are in few other lists.", start.surprising, (user) => `in ${percent(user.usual)} of lists`),
      group("Most typical", "They get what everyone gets: their items are in many other lists.", start.typical, (user) => `in ${percent(user.usual)} of lists`)),
    h("div", { class: "thirds" }, ways.map(([href, title, text]) =>
      h("a", { class: "card way", href }, h("h2", {}, title), h("p", { class: "soft" }, text)))),
    h("section", { class: "card" }, h("h2", {}, "Most popular items"),
      h("ul", { class: "tags" }, start.popular.map((item) => h("li", {}, h("a", { href: toItem(item.id), title: item.name }, String(item.id),
        h("span", { class: "note" }, ` ${item.degree.toLocaleString("en")}`)))))),
  ];
}
