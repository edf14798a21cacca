/* The values of a figure as a table, made when it is asked for. */
const MOST_ROWS = 2000;

const valueRows = (figure) => {
  const several = figure.panels.length > 1;
  const rows = [];
  for (const panel of figure.panels) {
    const first = several ? [panel.title || ""] : [];
    if (panel.heat) {
      for (const [row, column, value] of panel.heat.cells) {
        rows.push([...first, panel.heat.rows[row], panel.heat.columns[column], format(value)]);
      }
    }
    for (const series of panel.series || []) {
      series.x.forEach((x, i) => {
        const label = (series.labels || [])[i];
        const name = label ? `${series.name}, ${label}` : series.name;
        const bounds = series.low ? ` (${format(series.low[i], panel.y)} to ${format(series.high[i], panel.y)})` : "";
        rows.push([...first, name, format(x, panel.x), format(series.y[i], panel.y) + bounds]);
      });
    }
  }
  return rows;
};

const valueTable = (details) => {
  const figure = figureOf(details);
  const panel = figure.panels[0];
  const heads = panel.heat ? [panel.y.label, panel.x.label, panel.heat.unit] : ["name", panel.x.label || "x", panel.y.label || "y"];
  const table = make("table");
  const head = table.createTHead().insertRow();
  for (const text of [...(figure.panels.length > 1 ? ["panel"] : []), ...heads]) head.append(make("th", text, { scope: "col" }));
  const body = table.createTBody();
  const rows = valueRows(figure);
  for (const row of rows.slice(0, MOST_ROWS)) {
    const line = body.insertRow();
    for (const text of row) line.insertCell().textContent = text;
  }
  const place = details.querySelector(".scroll");
  place.replaceChildren(table);
  if (rows.length > MOST_ROWS) place.append(make("p", `The first ${MOST_ROWS} of ${rows.length} values.`));
};

const values = (element) => {
  const details = element.querySelector("details.values");
  details.addEventListener("toggle", () => { if (details.open) valueTable(details); });
};
