/* Reading the data, and drawing each panel of each figure into its place. */
let data = JSON.parse(document.getElementById("data").textContent);
const charts = new Map(); // chart element -> ECharts instance
const hidden = new Map(); // legend -> names of the series that are switched off
const dashes = ["solid", "dashed", "dotted"];
const still = matchMedia("(prefers-reduced-motion: reduce)");

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (slot) => {
  const colours = data.palette[isDark() ? "dark" : "light"];
  return colours[(slot || 0) % colours.length];
};
const symbol = (slot) => data.palette.symbols[(slot || 0) % data.palette.symbols.length];
const dash = (slot) => dashes[Math.floor((slot || 0) / data.palette.symbols.length) % dashes.length];

const format = (value, axis) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (axis && axis.categories) return axis.categories[Math.round(value)] ?? "";
  if (axis && axis.percent) return `${(100 * value).toFixed(1)} %`;
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+Number(value).toPrecision(3));
};

const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

const figureOf = (element) => data.figures[element.closest("[data-figure]").dataset.figure];
const shown = (element, panel) => {
  const off = hiddenIn(element);
  return (panel.series || []).filter((series) => !off.has(series.name));
};

const drawPanel = (element, panel) => {
  let chart = charts.get(element);
  if (!chart) {
    const renderer = panel.kind === "heat" ? "canvas" : "svg";
    const aim = panel.kind === "strip" ? { useCoarsePointer: true, pointerSize: 14 } : {}; // near a dot is on it
    chart = echarts.init(element, null, { renderer, ...aim });
    chart.on("click", (event) => {
      const client = event.data && event.data.client;
      if (client !== undefined) showClient(client, true);
    });
    charts.set(element, chart);
    watchSize(element, chart);
    if (panel.kind === "line") stepByKeyboard(element, chart);
  }
  const option = { ...base(), ...kinds[panel.kind].option(panel, shown(element, panel), element) };
  chart.setOption(option, { notMerge: true });
};

const drawFigure = (element) => {
  const figure = figureOf(element);
  element.querySelectorAll(".chart").forEach((place, i) => drawPanel(place, figure.panels[i]));
};

const isDrawn = (element) => charts.has(element.querySelector(".chart"));
const figures = (root = document) => [...root.querySelectorAll("[data-figure]")];
const drawAll = () => figures().forEach(drawFigure);

/* A figure is drawn when it comes near the screen; its place is kept from the start. */
const nearing = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    nearing.unobserve(target);
    if (target.isConnected && !isDrawn(target)) drawFigure(target);
  }
}, { rootMargin: "300px" });

const drawWhenNear = (element) => {
  const { panels } = figureOf(element);
  element.querySelectorAll(".chart").forEach((place, i) => {
    place.style.height = `${kinds[panels[i].kind].height(panels[i], place)}px`;
  });
  nearing.observe(element);
};

const forget = (root) => root.querySelectorAll(".chart").forEach((place) => {
  charts.get(place)?.dispose();
  charts.delete(place);
});

const watchSize = (element, chart) => {
  let width = element.clientWidth;
  new ResizeObserver(() => {
    if (chart.isDisposed() || element.clientWidth === width) return;
    width = element.clientWidth;
    chart.resize();
    drawFigure(element.closest("[data-figure]"));
  }).observe(element);
};

const stepByKeyboard = (element, chart) => {
  element.tabIndex = 0;
  element.setAttribute("aria-describedby", "step-help");
  let at = -1;
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") chart.dispatchAction({ type: "hideTip" });
    if (!step) return;
    event.preventDefault();
    const lines = chart.getOption().series.filter((series) => series.type === "line");
    const count = Math.max(0, ...lines.map((line) => line.data.length));
    const longest = chart.getOption().series.findIndex((s) => s.type === "line" && s.data.length === count);
    at = Math.min(count - 1, Math.max(0, at + step));
    chart.dispatchAction({ type: "showTip", seriesIndex: longest, dataIndex: at });
  });
  element.addEventListener("blur", () => chart.dispatchAction({ type: "hideTip" }));
};
