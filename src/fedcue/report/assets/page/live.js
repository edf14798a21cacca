/* Following runs that go on: the server says that something changed, the page takes what is new. */
const sources = new Map(); // part -> its HTML as the server sent it
const parts = (root) => [...root.querySelectorAll("[data-part]")];
const remember = (root) => parts(root).forEach((part) => sources.set(part.dataset.part, part.outerHTML));

const keep = (part) => ({
  open: [...part.querySelectorAll("details")].map((details) => details.open),
  scrolls: [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft),
  focus: [...part.querySelectorAll("a, button, select, summary, [tabindex]")].indexOf(document.activeElement),
});

const restore = (part, kept) => {
  part.querySelectorAll("details").forEach((details, i) => { if (kept.open[i] !== undefined) details.open = kept.open[i]; });
  part.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = kept.scrolls[i] || 0; });
  part.querySelectorAll("a, button, select, summary, [tabindex]")[kept.focus]?.focus({ preventScroll: true });
};

const replacePart = (old, fresh) => {
  const kept = keep(old);
  const part = document.importNode(fresh, true);
  forget(old);
  old.replaceWith(part);
  dress(part);
  restore(part, kept);
};

const takeOver = (fresh) => {
  data = JSON.parse(fresh.getElementById("data").textContent);
  const names = (root) => parts(root).map((part) => part.dataset.part).join();
  if (names(document) !== names(fresh)) {
    replacePart(document.querySelector("nav"), fresh.querySelector("nav"));
    replacePart(document.querySelector("main"), fresh.querySelector("main"));
  } else {
    for (const part of parts(fresh)) {
      if (part.outerHTML === sources.get(part.dataset.part)) continue;
      replacePart(document.querySelector(`[data-part="${part.dataset.part}"]`), part);
    }
  }
  remember(fresh);
  figures().filter(isDrawn).forEach(drawFigure);
  sortable();
  clientPanel();
};

const follow = () => {
  if (!("live" in document.body.dataset)) return;
  remember(document);
  const state = document.getElementById("live");
  const source = new EventSource("events");
  source.addEventListener("change", async () => {
    const answer = await fetch("", { cache: "no-store" });
    if (!answer.ok) return;
    takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
    state.textContent = `live, updated ${new Date().toLocaleTimeString("en-GB")}`;
  });
  source.onopen = () => { state.textContent = "live"; state.classList.remove("lost"); };
  source.onerror = () => { state.textContent = "connection lost, trying again"; state.classList.add("lost"); };
};
