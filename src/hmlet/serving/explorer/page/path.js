// The path of a user and an item through the layers, with the branches that the gates chose.
import { percent, s } from "./dom.js";

/** A straight line, or a wave: the branch shows without its colour. */
export function step(x0, x1, y, nonlinear) {
  if (!nonlinear) return `M${x0} ${y}H${x1}`;
  const part = (x1 - x0) / 4;
  return `M${x0} ${y}q${part / 2} -9 ${part} 0t${part} 0t${part} 0t${part} 0`;
}

/** The layers side by side, closer on a narrow screen, but never so close that their numbers meet. */
export function pathPicture(why) {
  const left = 52, right = 28, steps = Math.max(1, why.layers.length - 1);
  const room = Math.min(620, document.documentElement.clientWidth - 76); // without the margins of the page and of a card
  const gap = Math.max(53, Math.min(130, (room - left - right) / steps));
  const whole = left + gap * steps + right, lanes = { user: 34, item: 88 };
  const x = (layer) => left + layer * gap;
  const gates = new Map(why.gates.map((gate) => [gate.layer, gate]));
  const words = why.layers.map(({ layer }) => gates.has(layer) && `layer ${layer}: user ${gates.get(layer).user.branch}, item ${gates.get(layer).item.branch}`).filter(Boolean);
  const picture = s("svg", { class: "path", viewBox: `0 0 ${whole} 132`, role: "img",
    "aria-label": words.length ? `Gates chose: ${words.join("; ")}` : `No gates: every one of ${steps} layers is a linear step` });
  picture.style.minWidth = `${whole}px`; // letters are not made smaller
  picture.style.maxWidth = `${whole}px`;
  for (const [lane, y] of Object.entries(lanes)) {
    picture.append(s("text", { class: "lane", x: 4, y: y + 4 }, lane));
    for (const { layer } of why.layers) {
      const choice = gates.get(layer)?.[lane], waves = choice?.branch === "non-linear";
      if (layer > 0) picture.append(s("path", { class: `step ${waves ? "nonlinear" : ""}`, d: step(x(layer - 1) + 9, x(layer) - 9, y, waves) }));
      if (choice) picture.append(s("text", { x: (x(layer - 1) + x(layer)) / 2, y: y - 14, "text-anchor": "middle" }, percent(choice.probability)));
    }
    for (const { layer } of why.layers) picture.append(s("circle", { class: "node", cx: x(layer), cy: y, r: 7 }));
  }
  for (const { layer } of why.layers) picture.append(s("text", { x: x(layer), y: 124, "text-anchor": "middle" }, `layer ${layer}`));
  return picture;
}
