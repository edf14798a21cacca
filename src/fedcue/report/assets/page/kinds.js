/* How each kind of panel is drawn. */
const narrow = (element) => element.clientWidth < 460;

const base = () => ({
  animationDuration: 0,
  animationDurationUpdate: still.matches ? 0 : 250,
  textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 12, color: css("--ink") },
  grid: { left: 8, right: 18, top: 34, bottom: 34, containLabel: true },
});

const axis = (description, more = {}) => ({
  type: description.categories ? "category" : description.log ? "log" : "value",
  name: description.label || "",
  nameLocation: "middle",
  nameGap: 30,
  nameTextStyle: { color: css("--soft"), fontSize: 12 },
  data: description.categories,
  scale: true,
  ...(description.whole ? { minInterval: 1 } : {}),
  ...limits(description),
  axisLine: { onZero: false, lineStyle: { color: css("--rule") } },
  axisTick: { show: false },
  axisLabel: {
    color: css("--soft"),
    hideOverlap: true,
    ...(description.log ? { showMinLabel: false, showMaxLabel: false } : {}),
    formatter: description.categories ? undefined
      : (value) => (description.percent ? `${+(100 * value).toFixed(2)} %` : plainNumber(value)),
  },
  splitLine: { lineStyle: { color: css("--grid") } },
  ...more,
});
const limits = ({ percent, log, categories }) => {
  if (categories) return {};
  if (log) return { min: (range) => range.min * 0.9, max: (range) => range.max * 1.1 };
  if (percent) return { max: (range) => (range.max > 0.9 ? 1 : null) };
  return { min: (range) => (range.min >= 0 && range.min < 0.3 * range.max ? 0 : null) };
};
const logBase = (values) => (Math.max(...values) > 100 * Math.min(...values) ? 10 : 2);
const plainNumber = (value) => {
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e5) ? value.toExponential(0) : String(+value.toPrecision(4));
};

const vertical = (description, more = {}) => axis(description, {
  nameLocation: "end", nameGap: 12, nameTextStyle: { color: css("--soft"), fontSize: 12, align: "left", padding: [0, 0, 0, -28] }, ...more,
});

const tip = (formatter, more = {}) => ({
  confine: true,
  backgroundColor: css("--card"),
  borderColor: css("--rule"),
  textStyle: { color: css("--ink"), fontSize: 13 },
  extraCssText: "max-width: 22rem; white-space: normal; overflow-wrap: anywhere;",
  formatter,
  ...more,
});

const tipRows = (heading, rows) => {
  const box = make("div");
  box.append(make("strong", heading));
  for (const [name, value, slot] of rows) {
    const row = make("div", undefined, { class: "tip-row" });
    const mark = make("span", "●", { "aria-hidden": "true" });
    mark.style.color = slot === undefined ? "transparent" : colour(slot);
    row.append(mark, make("span", name), make("b", value));
    box.append(row);
  }
  return box;
};

const band = (series) => ({
  type: "custom", name: series.name, silent: true, z: 1, tooltip: { show: false },
  data: [series.x.map((_, i) => i)],
  renderItem: (_, api) => ({
    type: "polygon",
    shape: {
      points: [
        ...series.x.map((x, i) => api.coord([x, series.high[i]])),
        ...series.x.map((x, i) => api.coord([x, series.low[i]])).reverse(),
      ],
    },
    style: { fill: colour(series.slot), opacity: 0.14 },
  }),
  clip: true,
});

const whiskers = (series) => ({
  type: "custom", name: series.name, silent: true, clip: true, z: 1, tooltip: { show: false },
  data: series.x.map((x, i) => [x, series.low[i], series.high[i]]),
  renderItem: (_, api) => {
    const [x, low] = api.coord([api.value(0), api.value(1)]);
    const high = api.coord([api.value(0), api.value(2)])[1];
    return { type: "line", shape: { x1: x, y1: low, x2: x, y2: high }, style: { stroke: colour(series.slot), lineWidth: 1.5 } };
  },
});

const kinds = {
  line: {
    height: (panel, element) => (narrow(element) ? 280 : 340),
    option: (panel, visible) => ({
      xAxis: axis(panel.x, { splitLine: { show: false }, logBase: logBase(visible.flatMap((series) => series.x)) }),
      yAxis: vertical(panel.y),
      tooltip: tip((points) => tipRows(
        `${panel.x.label} ${format(points[0].data.value[0], panel.x)}`,
        points.map((point) => [point.seriesName, format(point.data.value[1], panel.y), point.data.slot, point.data.value[1]])
          .sort((a, b) => b[3] - a[3]),
      ), { trigger: "axis", axisPointer: { lineStyle: { color: css("--soft") } } }),
      series: [
        ...visible.filter((series) => series.low).map((series) => (series.x.length > 12 ? band(series) : whiskers(series))),
        ...visible.map((series) => ({
          type: "line", name: series.name, z: 2, showSymbol: series.x.length <= 25, symbol: symbol(series.slot), symbolSize: 7,
          lineStyle: { width: 2, type: dash(series.slot) }, color: colour(series.slot), emphasis: { focus: "series" },
          data: series.x.map((x, i) => ({ value: [x, series.y[i]], slot: series.slot || 0 })),
        })),
      ],
    }),
  },

  scatter: {
    height: (panel, element) => Math.min(400, Math.max(240, element.clientWidth * 0.8)),
    option: (panel, visible) => {
      const percent = panel.x.percent && panel.y.percent;
      const map = !percent;
      const all = visible.flatMap((series) => [...series.x, ...series.y, ...(series.low || [])]);
      const low = Math.floor(Math.min(...all) * 20 - 0.2) / 20;
      const high = Math.min(1, Math.ceil(Math.max(...all) * 20 + 0.2) / 20);
      const range = percent ? { min: low, max: high } : {};
      const quiet = map ? { axisLabel: { show: false }, name: "", axisLine: { show: false } } : {};
      const named = (series) => percent || (visible.length === 1 && series.x.length <= 120);
      return {
        xAxis: axis(panel.x, { ...range, ...quiet }),
        yAxis: vertical(panel.y, { ...range, ...quiet }),
        grid: { ...base().grid, top: map ? 8 : 34, bottom: map ? 8 : 34, right: percent ? 80 : 18 },
        tooltip: tip((point) => tipRows(point.data.text || point.seriesName, map
          ? (point.data.text ? [[point.seriesName, "", point.data.slot]] : [])
          : [[panel.x.label, format(point.value[0], panel.x)], [panel.y.label, format(point.value[1], panel.y)]]), { trigger: "item" }),
        series: [
          ...visible.filter((series) => series.low).map(whiskers),
          ...visible.map((series, i) => ({
            type: "scatter", name: series.name, symbol: symbol(series.slot), symbolSize: percent ? 13 : 9, color: colour(series.slot),
            emphasis: { focus: map ? "series" : "none" },
            label: {
              show: named(series), position: "right", color: css("--ink"), fontSize: 11, overflow: "truncate", width: 90,
              formatter: (point) => (percent ? series.name : point.data.text || ""),
            },
            labelLayout: { hideOverlap: !percent, moveOverlap: percent ? "shiftY" : undefined },
            data: series.x.map((x, k) => ({ value: [x, series.y[k]], text: (series.labels || [])[k], slot: series.slot || 0 })),
            markLine: percent && i === 0 ? {
              silent: true, symbol: "none", label: { show: false }, lineStyle: { color: css("--soft"), type: "dotted" },
              data: [[{ coord: [low, low] }, { coord: [high, high] }]],
            } : undefined,
          })),
        ],
      };
    },
  },

  bar: {
    height: (panel) => (lone(panel) ? 46 + 30 * panel.series.length : 300),
    option: (panel, visible) => (lone(panel) ? flatBars(panel, visible) : {
      xAxis: axis(panel.x, { axisLabel: { color: css("--soft"), hideOverlap: true, width: 90, overflow: "truncate" } }),
      yAxis: vertical(panel.y, { scale: false }),
      tooltip: tip((points) => tipRows(points[0].axisValue, points.map((p) => [p.seriesName, format(p.value, panel.y), p.data.slot])),
        { trigger: "axis", axisPointer: { type: "shadow" } }),
      series: visible.map((series) => ({
        type: "bar", name: series.name, color: colour(series.slot), barMaxWidth: 26, barGap: "12%",
        data: series.y.map((value) => ({ value, slot: series.slot || 0 })),
      })),
    }),
  },

  strip: {
    height: (panel) => 56 + 48 * panel.y.categories.length,
    option: (panel, visible, element) => {
      const rows = panel.y.categories.map((_, row) => row);
      return {
        grid: { left: 8, right: 22, top: 8, bottom: 36, containLabel: true },
        xAxis: axis(panel.x, { min: (range) => Math.max(0, Math.floor(range.min * 10 - 0.2) / 10), max: 1 }),
        yAxis: axis({ label: "" }, {
          min: -0.6, max: rows.length - 0.4, inverse: true, splitLine: { show: false }, axisLine: { show: false },
          axisLabel: { customValues: rows, color: css("--ink"), fontSize: 12, width: narrow(element) ? 86 : 170, overflow: "truncate",
            formatter: (value) => panel.y.categories[Math.round(value)] ?? "" },
        }),
        tooltip: tip((point) => (point.data && point.data.text
          ? tipRows(point.data.text, [[point.seriesName, format(point.value[0], panel.x), point.data.slot]]) : ""), { trigger: "item" }),
        series: visible.flatMap((series) => [boxOf(series), dotsOf(series)]),
      };
    },
  },

  heat: {
    height: (panel, element) => Math.min(640, Math.max(240, Math.min(element.clientWidth, 90 + 17 * panel.heat.rows.length))),
    option: (panel) => {
      const heat = panel.heat;
      const most = Math.max(...heat.cells.map((cell) => cell[2]), 1e-9);
      const names = (list, more) => axis({ label: more.label, categories: list }, {
        ...more, splitLine: { show: false }, splitArea: { show: false },
        axisLabel: { color: css("--soft"), hideOverlap: true, width: 80, overflow: "truncate" },
      });
      return {
        grid: { left: 8, right: 14, top: 34, bottom: 34, containLabel: true },
        xAxis: names(heat.columns, { label: panel.x.label }),
        yAxis: names(heat.rows, { label: "", inverse: true }),
        visualMap: {
          min: 0, max: most, orient: "horizontal", right: 10, top: 0, itemWidth: 9, itemHeight: 90, hoverLink: false,
          text: [`${format(most)} ${heat.unit}`, "0"], textStyle: { color: css("--soft"), fontSize: 11 },
          inRange: { color: css("--heat").split(" ") },
        },
        tooltip: tip((cell) => tipRows(`${panel.y.label} ${heat.rows[cell.value[1]]}`,
          [[`${panel.x.label} ${heat.columns[cell.value[0]]}`, `${format(cell.value[2])} ${heat.unit}`]]), { trigger: "item" }),
        series: [{
          type: "heatmap", itemStyle: { borderColor: css("--card"), borderWidth: heat.rows.length > 60 || heat.columns.length > 60 ? 0 : 1 },
          data: heat.cells.map(([row, column, value]) => ({ value: [column, row, value], client: (heat.clients || [])[row] })),
        }],
      };
    },
  },
};

const lone = (panel) => panel.series.every((series) => series.x.length === 1);

const flatBars = (panel, visible) => ({
  grid: { left: 8, right: 56, top: 4, bottom: 8, containLabel: true },
  xAxis: axis({ label: "" }, { scale: false, min: 0, axisLabel: { show: false }, splitLine: { show: false } }),
  yAxis: axis({ label: "", categories: visible.map((series) => series.name) }, {
    inverse: true, axisLine: { show: false }, axisLabel: { color: css("--ink"), width: 110, overflow: "truncate" },
  }),
  tooltip: tip((bar) => tipRows(bar.name, [[panel.y.label, format(bar.value, panel.y), bar.data.slot]]), { trigger: "item" }),
  series: [{
    type: "bar", barMaxWidth: 18,
    label: { show: true, position: "right", color: css("--ink"), formatter: (bar) => format(bar.value, panel.y) },
    data: visible.map((series) => ({ value: series.y[0], slot: series.slot || 0, itemStyle: { color: colour(series.slot) } })),
  }],
});

const quantile = (sorted, share) => {
  const at = (sorted.length - 1) * share;
  const below = Math.floor(at);
  return sorted[below] + (sorted[Math.min(below + 1, sorted.length - 1)] - sorted[below]) * (at - below);
};

const boxOf = (series) => {
  const sorted = [...series.x].sort((a, b) => a - b);
  return {
    type: "custom", name: series.name, silent: true, z: 1, tooltip: { show: false },
    data: [[quantile(sorted, 0.25), series.y[0], quantile(sorted, 0.75), quantile(sorted, 0.5)]],
    renderItem: (_, api) => {
      const [left, y] = api.coord([api.value(0), api.value(1)]);
      const right = api.coord([api.value(2), api.value(1)])[0];
      const middle = api.coord([api.value(3), api.value(1)])[0];
      return { type: "group", children: [
        { type: "rect", shape: { x: left, y: y - 14, width: Math.max(2, right - left), height: 28, r: 5 }, style: { fill: colour(series.slot), opacity: 0.14 } },
        { type: "rect", shape: { x: middle - 1.5, y: y - 14, width: 3, height: 28 }, style: { fill: colour(series.slot) } },
      ] };
    },
  };
};

const dotsOf = (series) => ({
  type: "scatter", name: series.name, z: 2, symbolSize: series.x.length > 200 ? 5 : 8, color: colour(series.slot), cursor: "pointer",
  itemStyle: { opacity: 0.75 }, emphasis: { scale: 1.6 },
  data: series.x.map((x, i) => ({
    value: [x, series.y[i] + (((i * 0.618034) % 1) - 0.5) * 0.42], text: (series.labels || [])[i], client: (series.clients || [])[i], slot: series.slot || 0,
  })),
});
