// Elements and numbers. Everything that came from data enters the page as a text node or an attribute, never as markup.

const SVG = "http://www.w3.org/2000/svg";
export const $ = (selector) => document.querySelector(selector);

/** An element with attributes (functions become listeners, false ones are left out) and children. */
function make(element, attributes = {}, ...children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}
export const h = (tag, attributes, ...children) => make(document.createElement(tag), attributes, ...children);
export const s = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, ...children);

/** Three significant digits, as the sentences have them: small scores differ as much as large ones. */
export const digits = (number) => (number === 0 ? "0" : number.toPrecision(3)).replace("-", "−");
export const signed = (number) => (number > 0 ? "+" : "") + digits(number);
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
/** A share in whole percent, as the sentences have it; below one they keep a digit, so that they differ. */
export const percent = (share) => `${share > 0 && share < 0.0095 ? (100 * share).toFixed(1) : Math.round(100 * share)}%`;
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" }, ordinals = new Intl.PluralRules("en", { type: "ordinal" });
export const ordinal = (number) => number.toLocaleString("en") + ENDINGS[ordinals.select(number)];

export function say(text) {
  $("#status").textContent = text;
  clearTimeout(say.timer);
  if (text) say.timer = setTimeout(() => say(""), 6000);
}

/** An id, and the name below or beside it. */
export const named = (id, name) =>
  [h("span", { class: "id" }, String(id)), name ? h("span", { class: "name", title: name }, name) : null];

export const card = (title, note, ...content) =>
  h("section", { class: "card" }, h("h2", {}, title, note && [" ", h("span", { class: "note" }, note)]), ...content);

/** Grey blocks in the place of what is being loaded. */
export const skeleton = (lines = 8) => h("div", { class: "card skeleton", "aria-hidden": "true" },
  Array.from({ length: lines }, () => h("i", {})));

/** A page that has nothing to show: why, and what to do about it. */
export const empty = (title, text, ...actions) => h("section", { class: "empty" },
  s("svg", { viewBox: "0 0 120 48", "aria-hidden": "true" },
    s("path", { class: "step", d: "M4 12H116" }), s("path", { class: "step nonlinear", d: "M4 36q14-18 28 0t28 0t28 0t28 0" })),
  h("h2", {}, title), h("p", { class: "soft" }, text), actions.length ? h("p", {}, actions) : null);
