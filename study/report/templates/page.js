"use strict";
// The page around the charts: colours, the run that is looked at closely, the list of decisions.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { html } = Charts;
  const root = document.documentElement;

  function theme(name) {
    if (name) root.dataset.theme = name;
    else delete root.dataset.theme;
    for (const view of Gantt.views) view.schedule();
  }

  function dark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function themeButton() {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => { theme(dark() ? "light" : "dark"); name(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); theme(root.dataset.theme); });
    name();
    let before;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      theme("light");
      for (const view of Gantt.views) view.paint();
      for (const details of document.querySelectorAll("details.print")) details.open = true;
    });
    addEventListener("afterprint", () => { theme(before); });
  }

  function table(parent, caption, header, rows) {
    const details = html("details", "numbers", parent);
    html("summary", "", details, "The numbers as a table");
    const made = html("table", "", html("div", "scroll", details));
    html("caption", "", made, caption);
    const head = html("tr", "", html("thead", "", made));
    for (const text of header) html("th", "", head, text).scope = "col";
    const body = html("tbody", "", made);
    for (const row of rows) {
      const line = html("tr", "", body);
      row.forEach((text, k) => { html(k ? "td" : "th", "", line, text).scope = k ? "" : "row"; });
    }
    return details;
  }

  function figure(parent, chart) {
    const made = html("figure", "chart", parent);
    const title = html("figcaption", "", made);
    html("strong", "", title, chart.title);
    html("span", "tag", title, "simulated");
    if (chart.note) html("span", "note", title, chart.note);
    html("div", "plot", made);
    if (chart.rows && chart.rows.length) table(made, chart.title, chart.header, chart.rows);
    return made;
  }

  // --- decisions: only the rows in view are elements ------------------------------------------------

  const ROW = 30;
  class Decisions {
    constructor(box, decisions, onpick) {
      Object.assign(this, { box, decisions, onpick });
      this.list = box.querySelector(".list");
      this.inner = box.querySelector(".inner");
      this.field = box.querySelector("input");
      this.count = box.querySelector(".count");
      this.full = box.querySelector(".full");
      this.texts = decisions.text.map((t) => decisions.texts[t]);
      this.low = this.texts.map((t, k) => `${decisions.stages[decisions.stage[k]]} ${t}`.toLowerCase());
      this.chosen = -1;
      this.field.oninput = () => this.filter();
      this.list.onscroll = () => this.paint();
      this.list.onkeydown = (event) => this.key(event);
      this.filter();
    }

    filter() {
      const wanted = this.field.value.trim().toLowerCase();
      this.rows = [];
      this.low.forEach((text, k) => { if (!wanted || text.includes(wanted)) this.rows.push(k); });
      this.chosen = -1;
      this.full.textContent = "";
      this.count.textContent = `${this.rows.length} of ${this.low.length} entries`;
      this.inner.style.height = `${this.rows.length * ROW}px`;
      this.list.setAttribute("aria-rowcount", String(this.rows.length));
      this.list.scrollTop = 0;
      this.paint();
    }

    paint() {
      const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4);
      const last = Math.min(this.rows.length, first + Math.ceil(this.list.clientHeight / ROW) + 8);
      this.inner.textContent = "";
      for (let at = first; at < last; at++) this.inner.appendChild(this.row(at));
    }

    row(at) {
      const k = this.rows[at];
      const line = html("div", at === this.chosen ? "line chosen" : "line");
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", String(at + 1));
      line.setAttribute("aria-selected", String(at === this.chosen));
      line.id = `decision-${at}`;
      line.style.top = `${at * ROW}px`;
      const stage = this.decisions.stages[this.decisions.stage[k]];
      for (const [name, text] of [["when", Gantt.seconds(this.decisions.time[k])], ["stage", stage], ["why", this.texts[k]]]) {
        html("span", name, line, text).setAttribute("role", "gridcell");
      }
      line.onclick = () => this.choose(at);
      return line;
    }

    choose(at) {
      if (at < 0 || at >= this.rows.length) return;
      this.chosen = at;
      const top = at * ROW;
      if (top < this.list.scrollTop) this.list.scrollTop = top;
      if (top + ROW > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top + ROW - this.list.clientHeight;
      this.paint();
      this.list.setAttribute("aria-activedescendant", `decision-${at}`);
      const k = this.rows[at];
      const values = this.decisions.details[this.decisions.detail[k]];
      this.full.textContent = `${Gantt.seconds(this.decisions.time[k])}, ${this.decisions.stages[this.decisions.stage[k]]}: ${this.texts[k]}${values ? `\n${values}` : ""}`;
      this.onpick(this.decisions.time[k]);
    }

    key(event) {
      const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(this.rows.length - 1, this.chosen + step)));
    }
  }

  // --- one run, closely --------------------------------------------------------------------------------

  const closely = document.getElementById("closely");

  async function unpacked(id) {
    return JSON.parse(new TextDecoder().decode(await Gantt.inflate(id)));
  }

  async function openRun(run) {
    const charts = closely.querySelector(".run-charts");
    for (const old of charts.querySelectorAll("figure")) Charts.drop(old);
    charts.textContent = "";
    const content = await unpacked(`run-${run.key}`);
    let gantt = null;
    const jump = (time) => { if (gantt) gantt.goTo(time); };
    let pair = null; // small charts stand side by side
    const places = content.charts.map((chart) => {
      const small = /^(jobs|power)-/.test(chart.id);
      if (small && !pair) pair = html("div", "pair", charts);
      return figure(small ? pair : charts, chart);
    });
    // All places first: how wide one is depends on its neighbours.
    places.forEach((place, k) => { Charts.draw(place, content.charts[k]).onpick = jump; });
    const part = closely.querySelector(".gantt-part");
    part.hidden = !run.bars;
    if (run.bars) gantt = await openGantt(part, run);
    else Gantt.views.length = 0;
    const decisions = closely.querySelector(".decisions");
    decisions.hidden = !content.decisions;
    if (content.decisions) {
      decisions.querySelector(".note").textContent = content.decisions.note;
      new Decisions(decisions, content.decisions, jump);
    }
    showEvents(content.events);
    closely.dataset.run = run.key;
  }

  function showEvents(events) {
    const part = closely.querySelector(".events");
    part.textContent = "";
    if (!events || !events.rows.length) return;
    html("h3", "", part, "Faults and other events");
    html("p", "note", part, events.note);
    const details = table(part, "Events", events.header, events.rows);
    details.open = events.rows.length <= 12;
  }

  async function openGantt(part, run) {
    const box = part.querySelector(".gantt");
    part.querySelector(".note").textContent = run.note;
    const gantt = await Gantt.open(box, run);
    gantt.faults = run.faults || [];
    const there = new Set(gantt.bars.kind);
    gantt.there = gantt.header.kinds.filter((_, k) => there.has(k));
    const on = (name, act) => { part.querySelector(`[data-act=${name}]`).onclick = act; };
    on("in", () => gantt.zoom(0.6, 1));
    on("out", () => gantt.zoom(1 / 0.6, 1));
    on("taller", () => gantt.zoom(1, 0.6));
    on("flatter", () => gantt.zoom(1, 1 / 0.6));
    on("reset", () => gantt.reset());
    const choose = (name, act) => { const field = part.querySelector(`[data-choose=${name}]`); field.onchange = () => act(field.value); act(field.value); };
    choose("colour", (value) => { gantt.mode = value; legend(part, gantt); gantt.schedule(); });
    const rows = part.querySelector("[data-choose=order]");
    rows.value = run.bars.rows > 400 ? "packed" : "arrival";
    choose("order", (value) => gantt.sort(value));
    const field = part.querySelector("[data-act=find]");
    const told = part.querySelector(".found");
    field.onkeydown = (event) => {
      if (event.key !== "Enter") return;
      told.textContent = gantt.find(field.value) ? "" : "no job of that name";
    };
    gantt.open();
    gantt.paint();
    return gantt;
  }

  function legend(part, gantt) {
    const box = part.querySelector(".legend");
    box.textContent = "";
    const names = gantt.mode === "kind" ? gantt.there.map((k) => [`k-${k}`, k])
      : [["k-queued", "queued"], ...gantt.header.uses.map((u) => [`u-${u}`, u])];
    for (const [variable, name] of names) {
      const key = html("span", "key", box);
      html("i", "", key).style.background = `var(--${variable})`;
      html("span", "", key, gantt.header.words[name]);
    }
    if (!gantt.faults.length) return;
    const key = html("span", "key", box);
    Object.assign(html("i", "", key).style, { width: "2px", background: "var(--k-fault)" });
    html("span", "", key, "a fault begins");
  }

  function filters() {
    // Tables of many rows: only those that hold every word typed.
    for (const field of document.querySelectorAll("input[data-filter]")) {
      const rows = [...document.getElementById(field.dataset.filter).querySelectorAll("tbody tr")];
      const texts = rows.map((row) => row.textContent.toLowerCase());
      const count = field.parentElement.querySelector(".count");
      field.oninput = () => {
        const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
        let left = 0;
        rows.forEach((row, k) => { row.hidden = !wanted.every((word) => texts[k].includes(word)); left += !row.hidden; });
        count.textContent = wanted.length ? `${left} of ${rows.length}` : "";
      };
    }
  }

  function start() {
    themeButton();
    filters();
    for (const chart of data.charts) Charts.draw(document.getElementById(`chart-${chart.id}`), chart);
    if (closely && data.runs.length) {
      const picker = document.getElementById("run");
      const open = () => openRun(data.runs[picker.selectedIndex]).catch((error) => {
        closely.querySelector(".failed").textContent = `This run cannot be shown: ${error.message}`;
      });
      picker.onchange = open;
      open();
    }
    let waiting;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { Charts.redraw(); for (const view of Gantt.views) view.schedule(); }, 120);
    });
  }

  start();
})();
