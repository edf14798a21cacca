/* Light, dark, or as the system says; paper is always light. */
const themes = ["automatic", "light", "dark"];

const setTheme = (name) => {
  if (name === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
};

const redraw = () => {
  legends();
  figures().filter(isDrawn).forEach(drawFigure);
};

const themeButton = () => {
  const button = document.getElementById("theme");
  let at = 0;
  button.hidden = false;
  button.addEventListener("click", () => {
    at = (at + 1) % themes.length;
    setTheme(themes[at]);
    button.textContent = `Theme: ${themes[at]}`;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    setTheme("light");
    drawAll();
    redraw();
    for (const chart of charts.values()) chart.resize();
  });
  addEventListener("afterprint", () => {
    setTheme(themes[at]);
    redraw();
    for (const chart of charts.values()) chart.resize();
  });
};
