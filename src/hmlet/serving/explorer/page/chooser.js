// A search field with a list to choose from: type, arrow keys, Enter, Escape.
import { h, named, say } from "./dom.js";
import { find } from "./api.js";

/** `sides` are what is looked for, "user" and "item"; `choose(side, id)` is told what was chosen. */
export function chooser(name, sides, label, hint, choose, { quiet = false } = {}) {
  const items = h("ul", { role: "listbox", id: `${name}-list`, "aria-label": label, hidden: "" });
  const input = h("input", {
    id: `${name}-input`, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder: hint,
    maxlength: 100, "aria-expanded": "false", "aria-controls": items.id, "aria-autocomplete": "list",
    input: () => search(), focus: () => search(), keydown: key, blur: () => setTimeout(close, 150),
  });
  let found = [], at = -1, asked = 0;

  async function search() {
    const mine = ++asked;
    await new Promise((resolve) => setTimeout(resolve, 120));
    if (mine !== asked) return;
    try {
      const query = input.value.trim();
      const answers = await Promise.all(sides.map(async (side) =>
        (await find(side, query, sides.length > 1 ? 6 : 12)).map((entry) => ({ side, id: entry[side], name: entry.name }))));
      if (mine === asked) show(answers.flat(), `No ${sides.join(" or ")} matches “${query}”`);
    } catch (error) { say(error.message); }
  }
  function show(entries, otherwise) {
    [found, at] = [entries, -1];
    items.replaceChildren(...entries.map((entry, index) => h("li", {
      role: "option", id: `${name}-option-${index}`, "aria-selected": "false",
      mousedown: (event) => { event.preventDefault(); pick(index); },
    }, named(entry.id, entry.name).flatMap((part) => [part, " "]), sides.length > 1 && h("span", { class: "kind" }, entry.side))));
    if (!entries.length && otherwise) items.append(h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, otherwise));
    items.hidden = !items.children.length;
    input.setAttribute("aria-expanded", String(!items.hidden));
    input.removeAttribute("aria-activedescendant");
  }
  function close() { asked++; show([]); }
  function move(step) {
    if (!found.length) return;
    at = (at + step + found.length) % found.length;
    [...items.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === at)));
    input.setAttribute("aria-activedescendant", items.children[at].id);
    items.children[at].scrollIntoView({ block: "nearest" });
  }
  function pick(index) {
    const { side, id } = found[index];
    input.value = "";
    close();
    choose(side, String(id));
  }
  function key(event) {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && found.length) pick(Math.max(at, 0));
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  }
  return h("div", { class: "field" }, h("label", { for: input.id, class: quiet && "hidden" }, label), input, items);
}
