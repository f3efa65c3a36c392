// The explorer: which view an address shows, and what is shown while it loads or fails.
import { about } from "./api.js";
import { chooser } from "./chooser.js";
import { showCompare } from "./compare.js";
import { $, count, empty, h, skeleton } from "./dom.js";
import { showGates } from "./gates.js";
import { showItem } from "./item.js";
import { showMap } from "./map.js";
import { go, here, toNode } from "./router.js";
import { showStart } from "./start.js";
import { showUser } from "./user.js";
import { showNew, showWhatIf } from "./whatif.js";

const VIEWS = { "": showStart, user: showUser, "what-if": showWhatIf, new: showNew, item: showItem, compare: showCompare, map: showMap, gates: showGates };
const NEEDS_ID = ["user", "what-if", "item", "compare"];
const SKELETON_AFTER = 150; // milliseconds: what is faster than that only flickers

/** What frames every view: the links to the views that the model has, and the model itself. */
async function frame() {
  const model = await about();
  $("#model").textContent = `${model.model} on ${model.data.name}: ${count(model.data.users, "user")}, ${count(model.data.items, "item")}`;
  $("[data-view=gates]").hidden = model.gated_layers.length === 0;
  $("[data-view=map]").hidden = !model.mapped;
}

let shown = 0, leave = null;
async function route() {
  const mine = ++shown, main = $("#main"), where = here();
  if (where.view === "" || (NEEDS_ID.includes(where.view) && !where.raw[0])) where.view = "";
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.dataset.view === where.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  frame().catch(() => {}); // the view says what is wrong
  const loading = setTimeout(() => { if (mine === shown && !$("#moved")) main.replaceChildren(skeleton(3), h("div", { class: "columns" }, skeleton(9), skeleton(9))); }, SKELETON_AFTER);
  let content;
  try {
    const view = VIEWS[where.view];
    if (!view) throw new Error(`The explorer has no page “${where.view}”.`);
    content = await view(where, where.view === main.dataset.view ? main : null);
  } catch (error) {
    content = [empty("This cannot be shown", h("span", { role: "alert" }, error.message), error.again && h("button", { type: "button", class: "quiet", click: route }, "Try again"), where.view !== "" && [" ", h("a", { class: "button", href: "#/" }, "Back to the start")])];
  }
  clearTimeout(loading);
  if (mine !== shown) { content.leave?.(); return; } // a later view has won
  leave?.();
  leave = content.leave;
  main.dataset.view = where.view;
  main.replaceChildren(...content.flat(Infinity).filter(Boolean));
  main.removeAttribute("aria-busy");
  main.classList.remove("arriving");
  void main.offsetWidth; // so that the animation begins again
  main.classList.add("arriving");
  if (where.view === "user" && where.raw[1] !== undefined) {
    const why = $("#explanation");
    if (why) { why.focus({ preventScroll: true }); if (matchMedia("(max-width: 60rem)").matches) why.scrollIntoView({ block: "start" }); }
  }
}

let last = "";
addEventListener("hashchange", () => {
  const [view, id] = here().raw.length ? [here().view, here().raw[0]] : [here().view, ""];
  if (`${view}/${id}` !== last && !["new", "what-if"].includes(view)) scrollTo(0, 0);
  last = `${view}/${id}`;
  route();
});
addEventListener("keydown", (event) => { // as on many pages, a slash goes to the search
  if (event.key === "/" && !event.target.closest?.("input, select, textarea")) { event.preventDefault(); $("#search-input").focus(); }
});

$("#search").append(chooser("search", ["user", "item"], "Search users and items", "Search users and items", (side, id) => go(toNode(side, id)), { quiet: true }));
route();
