/* Legends: a button per line, which works by keyboard too. Figures side by side can share one. */
const scopeOf = (element) => element.closest("[data-legend]");
const hiddenIn = (element) => {
  const name = scopeOf(element).dataset.legend;
  if (!hidden.has(name)) hidden.set(name, new Set());
  return hidden.get(name);
};

const legendEntries = (members) => {
  const entries = new Map();
  for (const panel of members.flatMap((element) => figureOf(element).panels)) {
    if (panel.kind === "strip" || (panel.kind === "bar" && lone(panel))) continue;
    for (const series of panel.series || []) entries.set(series.name, series.slot || 0);
  }
  return entries;
};

const legend = (scope) => {
  const members = scope.matches("[data-figure]") ? [scope] : figures(scope);
  const entries = legendEntries(members);
  const place = scope.querySelector(".legend");
  place.replaceChildren();
  place.hidden = entries.size < 2 || entries.size > 24;
  if (place.hidden) return;
  const off = hiddenIn(scope);
  for (const [name, slot] of entries) {
    const button = make("button", undefined, { type: "button", "aria-pressed": String(!off.has(name)) });
    const mark = make("span", "", { class: "mark", "aria-hidden": "true" });
    mark.style.setProperty("--mark", colour(slot));
    mark.style.borderTopStyle = dash(slot);
    button.append(mark, name);
    button.addEventListener("click", () => {
      if (!off.delete(name)) off.add(name);
      button.setAttribute("aria-pressed", String(!off.has(name)));
      members.filter(isDrawn).forEach(drawFigure);
    });
    place.append(button);
  }
};
const legends = (root = document) => root.querySelectorAll("[data-legend]").forEach(legend);
