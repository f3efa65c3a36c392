// Lists of users and items: links with an id, a name, a number and a bar.
import { digits, h, named } from "./dom.js";

/** Rows of `{id, name}`. `href` makes links, `value` numbers and bars, `note` a remark, `current` marks one. */
export function rows(entries, { href, value, note, current, show = digits } = {}) {
  const largest = Math.max(...entries.map((entry) => Math.abs(value?.(entry) ?? 0)), 1e-12);
  return entries.map((entry) => {
    const number = value?.(entry);
    const bar = value && h("i", { class: number < 0 && "against" });
    if (bar) bar.style.width = `${(100 * Math.abs(number)) / largest}%`;
    return h("li", { "data-key": entry.id }, h(href ? "a" : "div", {
      class: "row", href: href?.(entry), "aria-current": current?.(entry) && "true",
    }, named(entry.id, entry.name), value && h("span", { class: "value" }, show(number)),
    note && h("span", { class: "remark" }, note(entry)), bar && h("span", { class: "bar" }, bar)));
  });
}

/** Let rows slide from where they were: `change` replaces them, and `data-key` says which is which. */
export function sliding(container, change) {
  const before = new Map([...container.querySelectorAll("[data-key]")].map((row) => [row.dataset.key, row.getBoundingClientRect().top]));
  change();
  if (!before.size || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const row of container.querySelectorAll("[data-key]")) {
    const old = before.get(row.dataset.key);
    const moved = old === undefined ? null : old - row.getBoundingClientRect().top;
    if (moved === null) row.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 400 });
    else if (moved) row.animate([{ transform: `translateY(${moved}px)` }, { transform: "none" }], { duration: 400, easing: "cubic-bezier(.2,.7,.2,1)" });
  }
}
