/* Legends: a button per line, so that they work by keyboard too. */
const legend = (element) => {
  const figure = figureOf(element);
  const place = element.querySelector(".legend");
  const entries = new Map();
  for (const panel of figure.panels) {
    if (panel.kind !== "strip") for (const series of panel.series || []) entries.set(series.name, series.slot || 0);
  }
  const direct = figure.panels.every((panel) => panel.kind === "bar" && lone(panel));
  place.replaceChildren();
  place.hidden = entries.size < 2 || entries.size > 24 || direct;
  if (place.hidden) return;
  const off = hidden.get(figure.name) || new Set();
  hidden.set(figure.name, off);
  for (const [name, slot] of entries) {
    const button = make("button", undefined, { type: "button", "aria-pressed": String(!off.has(name)) });
    const mark = make("span", "", { class: "mark", "aria-hidden": "true" });
    mark.style.setProperty("--mark", colour(slot));
    mark.style.borderStyle = dash(slot);
    button.append(mark, name);
    button.addEventListener("click", () => {
      if (!off.delete(name)) off.add(name);
      button.setAttribute("aria-pressed", String(!off.has(name)));
      drawFigure(element);
    });
    place.append(button);
  }
};
