// A signed waterfall as a table: each bar begins where the one before ended, and the last is the sum.
import { digits, h, signed } from "./dom.js";

const LEAST = 0.6; // percent of the width: a part that is not zero is visible

/** Parts of `{label, value, title, href, note, named, soft}` that add up to `total`. */
export function waterfall(caption, parts, total) {
  let sum = 0;
  const steps = parts.map((part) => ({ ...part, from: sum, to: (sum += part.value) }));
  const low = Math.min(0, total, ...steps.map((each) => each.to)), high = Math.max(0, total, ...steps.map((each) => each.to));
  const at = (value) => (100 * (value - low)) / (high - low || 1);
  const row = (each, from, to, kind) => {
    const bar = h("i", { class: kind });
    const width = Math.max(each.value ? LEAST : 0, Math.abs(at(to) - at(from)));
    bar.style.left = `${Math.min(at(from), at(to), 100 - width)}%`;
    bar.style.width = `${width}%`;
    const zero = h("b", {});
    zero.style.left = `${at(0)}%`;
    return h("tr", { class: [each.named && "named", each.soft && "aside", kind === "total" && "sum"].filter(Boolean).join(" ") },
      h("th", { scope: "row", title: each.title }, each.href ? h("a", { href: each.href }, each.label) : each.label),
      h("td", { class: "value" }, kind === "total" ? digits(each.value) : signed(each.value)),
      h("td", { class: "track", "aria-hidden": "true" }, h("div", {}, zero, bar), each.note && h("small", {}, each.note)));
  };
  return h("table", { class: "waterfall" }, h("caption", { class: "hidden" }, caption), h("colgroup", {}, ["label", "amount", "picture"].map((name) => h("col", { class: name }))),
    h("thead", { class: "hidden" }, h("tr", {}, ["part", "amount", "picture"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, steps.map((each) => row(each, each.from, each.to, each.value < 0 ? "against" : "for")),
      row({ label: "score", value: total }, 0, total, "total")));
}
