/* One client: the classes it holds and what its images are taken for. */
const chosen = { client: null, method: null };

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

const images = (number, kind = "") => `${number} ${kind}${number === 1 ? "image" : "images"}`;

const clientPanel = () => {
  const choice = document.getElementById("client-choice");
  if (!choice || !data.clients) return;
  const method = document.getElementById("client-method");
  const { series, clients } = data.clients;
  if (chosen.method === null || chosen.method >= series.length) chosen.method = series.length - 1;
  const order = [...clients].sort((a, b) => (a.accuracies[chosen.method] ?? 2) - (b.accuracies[chosen.method] ?? 2));
  choice.replaceChildren(...order.map((client) =>
    make("option", `${client.name} (${percent(client.accuracies[chosen.method])})`, { value: client.id })));
  method.replaceChildren(...series.map((name, i) => make("option", name, { value: i })));
  method.value = chosen.method;
  choice.onchange = () => showClient(Number(choice.value));
  method.onchange = () => { chosen.method = Number(method.value); clientPanel(); };
  showClient(chosen.client ?? order[0]?.id);
};

const showClient = (id, jump = false) => {
  const client = data.clients && data.clients.clients.find((one) => one.id === id);
  const view = document.getElementById("client-view");
  if (!client || !view) return;
  chosen.client = id;
  document.getElementById("client-choice").value = id;
  const about = [client.domain, client.heldout ? "held out: never trains" : "trains",
    images(client.train, "training "), images(client.test, "test "), `seed ${data.clients.seed}`];
  view.replaceChildren(
    make("p", client.name, { class: "client-name" }),
    make("p", about.filter(Boolean).join(" · "), { class: "soft" }),
    group("Accuracy by method", bars(data.clients.series.map((name, i) => [name, client.accuracies[i], percent(client.accuracies[i])]), 1)),
    group("Its classes", bars(client.classes.map(([c, n]) => [data.clients.classes[c], n, images(n)]), Math.max(...client.classes.map((c) => c[1]), 1))),
    group(`What ${data.clients.series[chosen.method]} takes its test images for`, confusion(client)),
  );
  if (jump) {
    const card = document.getElementById("client");
    card.scrollIntoView({ block: "nearest", behavior: still.matches ? "auto" : "smooth" });
    document.getElementById("client-choice").focus({ preventScroll: true });
  }
};

const group = (title, content) => {
  const box = make("div", undefined, { class: "client-part" });
  box.append(make("h4", title), content);
  return box;
};

const bars = (rows, most) => {
  const table = make("table", undefined, { class: "bars" });
  for (const [name, value, text] of rows) {
    const row = table.insertRow();
    row.append(make("th", name, { scope: "row" }));
    const bar = make("span", "", { class: "amount" });
    bar.style.width = `${(100 * (value || 0)) / most}%`;
    const cell = row.insertCell();
    cell.append(bar);
    row.insertCell().textContent = text;
  }
  return table;
};

const confusion = (client) => {
  const triples = (client.confusions || [])[chosen.method];
  if (!triples || !triples.length) return make("p", client.confusions ? "This method cannot serve this client." : "Left out to keep the page small.", { class: "soft" });
  const truths = [...new Set(triples.map((t) => t[0]))];
  const guesses = [...new Set([...truths, ...triples.map((t) => t[1])])];
  const names = data.clients.classes;
  const most = Math.max(...triples.map((t) => t[2]));
  const scroll = make("div", undefined, { class: "scroll", tabindex: "0", role: "region", "aria-label": "Confusions of the client" });
  const table = make("table", undefined, { class: "confusion" });
  table.append(make("caption", "rows: true class, columns: predicted"));
  const head = table.createTHead().insertRow();
  head.append(make("th", "true", { scope: "col" }), ...guesses.map((c) => make("th", names[c], { scope: "col" })));
  const body = table.createTBody();
  for (const truth of truths) {
    const row = body.insertRow();
    row.append(make("th", names[truth], { scope: "row" }));
    for (const guess of guesses) {
      const count = triples.find((t) => t[0] === truth && t[1] === guess)?.[2] || 0;
      const cell = row.insertCell();
      cell.textContent = count || "·";
      cell.className = truth === guess ? "right" : count ? "wrong" : "none";
      cell.style.setProperty("--share", `${Math.round((35 * count) / most)}%`);
    }
  }
  scroll.append(table);
  return scroll;
};
