"use strict";
// Small SVG charts: line, step, area (stacked), scatter, bars (stacked), ranked, tornado.
// Along a log axis a view holds logarithms; texts show the numbers themselves.
// All texts are set as text, never as markup, so names from scenarios cannot become code.
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4", "6 2 1 2"];
  const LINE = 13; // px, of a label with several lines
  const views = [];

  function wrapped(text, room) {
    const lines = [""];
    for (const word of text.match(/[^,\s._=]*[,\s._=]*/g)) {
      if (lines.at(-1) && (lines.at(-1) + word.trimEnd()).length > room) lines.push("");
      lines[lines.length - 1] += word;
    }
    return lines.map((line) => line.trimEnd());
  }

  function svg(name, attributes, parent, text) {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function html(name, className, parent, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  function colour(key) {
    if (key === "front") return "var(--text)";
    return typeof key === "number" ? `var(--p${key % 8})` : `var(--u-${key})`;
  }

  function digits(value) {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toPrecision(3);
    return String(Number(value.toPrecision(4)));
  }

  function ticks(low, high, wanted) {
    const span = high - low;
    if (!(span > 0)) return [low];
    const raw = span / Math.max(1, wanted);
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  }

  function extent(values, zero) {
    let low = zero ? 0 : Infinity;
    let high = zero ? 0 : -Infinity;
    for (const list of values) {
      for (const value of list) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (!(high >= low)) return [0, 1];
    return high > low ? [low, high] : [low - (low ? Math.abs(low) * 0.05 : 0), high + (high ? Math.abs(high) * 0.05 : 1)];
  }

  function lastAtMost(list, value) {
    let low = 0;
    let high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  class View {
    constructor(figure, chart) {
      this.figure = figure;
      this.chart = chart;
      this.hidden = new Set();
      if (chart.y.log) for (const s of chart.series) s.y = s.y.map((y) => (y > 0 ? Math.log10(y) : null));
      if (chart.x.log) for (const s of chart.series) s.x = s.x.map((x) => (x > 0 ? Math.log10(x) : null));
      this.box = figure.querySelector(".plot");
      this.box.textContent = "";
      this.legend = html("div", "legend", this.box);
      this.stage = html("div", "stage", this.box);
      this.tip = html("div", "tip", this.stage);
      this.tip.hidden = true;
      this.live = html("p", "hidden", this.box);
      this.live.setAttribute("aria-live", "polite");
      this.rowed = ["bars", "ranked", "tornado"].includes(chart.kind);
      this.full = this.bounds();
      this.view = { ...this.full };
      this.cursor = null;
      this.buildLegend();
      this.buildTools();
      this.draw();
    }

    get shown() {
      return this.chart.series.filter((s) => !this.hidden.has(s.name));
    }

    bounds() {
      const { chart } = this;
      const xs = chart.series.map((s) => s.x);
      const ys = chart.series.map((s) => s.y.map((y, k) => (y !== null && s.half && s.half[k] ? y + s.half[k] : y)));
      let x, y;
      if (chart.kind === "bars") {
        x = [0, chart.x.high || 100];
        y = [-0.5, chart.y.ticks.length - 0.5];
      } else if (chart.kind === "ranked") {
        x = [0, extent(chart.series.map((s) => s.y), true)[1] * 1.3]; // room for the texts
        y = [-0.5, chart.y.ticks.length - 0.5];
      } else if (chart.kind === "tornado") {
        x = extent(chart.series.map((s) => s.y), false);
        const pad = (x[1] - x[0]) * 0.2; // room for the labels at the ends
        x = [x[0] - pad, x[1] + pad];
        y = [-0.5, chart.y.ticks.length - 0.5];
      } else {
        x = extent(xs, chart.kind !== "area" && chart.x.zero && !chart.x.ticks && !chart.x.log);
        y = extent(chart.kind === "area" ? [this.stacked().map((band) => Math.max(0, ...band.above))] : ys, chart.y.zero);
        if (chart.kind === "scatter") { // points off the edges
          const [wide, high] = [(x[1] - x[0]) * 0.04, (y[1] - y[0]) * 0.06];
          x = [x[0] - (chart.x.zero || (chart.x.log && chart.y.log) ? 0 : wide), x[1] + wide];
          y[0] -= chart.y.zero || chart.y.log ? 0 : high;
        }
        if (chart.x.ticks) x = [x[0] - 0.2, x[1] + 0.2];
        y[1] = chart.y.high !== undefined ? chart.y.high : y[1] + 0.05 * (chart.y.zero ? y[1] : y[1] - y[0]);
        if (chart.y.log) { y[0] -= 0.08; x[0] -= 0.04 * (x[1] - x[0]); } // points off the edges
      }
      return { x0: x[0], x1: x[1], y0: y[0], y1: y[1] };
    }

    buildLegend() {
      const { chart } = this;
      if (chart.kind === "ranked" || (chart.series.length === 1 && chart.kind !== "area")) return;
      for (const [k, series] of chart.series.entries()) {
        const button = html("button", "key", this.legend);
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        const mark = svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, button);
        if (["line", "step"].includes(this.chart.kind)) {
          const stroke = `stroke:${colour(series.colour)};stroke-width:2.5`;
          svg("line", { x1: 0, y1: 6, x2: 22, y2: 6, style: stroke, "stroke-dasharray": DASHES[k % 8] }, mark);
        } else if (chart.kind === "scatter" && series.colour !== "front") {
          this.marker(mark, 11, 6, k, series.colour);
        } else if (series.colour === "front") {
          svg("line", { x1: 0, y1: 6, x2: 22, y2: 6, style: "stroke:var(--text);stroke-width:1.5" }, mark);
        } else {
          svg("rect", { x: 3, y: 0, width: 12, height: 12, style: `fill:${colour(series.colour)}` }, mark);
        }
        html("span", "", button, series.name);
        button.addEventListener("click", () => {
          if (this.hidden.has(series.name)) this.hidden.delete(series.name);
          else this.hidden.add(series.name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(series.name)));
          this.draw();
        });
      }
    }

    buildTools() {
      if (this.rowed) return;
      const tools = html("div", "tools", this.box);
      const add = (text, label, act) => {
        const button = html("button", "tool", tools, text);
        button.type = "button";
        button.setAttribute("aria-label", `${label}: ${this.chart.title}`);
        button.addEventListener("click", act);
      };
      add("+", "Zoom in", () => this.zoom(0.5));
      add("\u2212", "Zoom out", () => this.zoom(2));
      add("Reset", "Show all", () => this.reset());
      html("span", "hint", tools, "drag to zoom, double click to reset");
    }

    reset() {
      this.view = { ...this.full };
      this.draw();
    }

    zoom(factor, centre) {
      const { x0, x1 } = this.view;
      const middle = centre === undefined ? (x0 + x1) / 2 : centre;
      this.setX(middle - (middle - x0) * factor, middle + (x1 - middle) * factor);
    }

    setX(low, high) {
      const span = Math.min(high - low, this.full.x1 - this.full.x0);
      if (span < (this.full.x1 - this.full.x0) * 1e-6) return;
      low = Math.max(this.full.x0, Math.min(low, this.full.x1 - span));
      this.view.x0 = low;
      this.view.x1 = low + span;
      this.draw();
    }

    measure() {
      const { chart } = this;
      const width = Math.max(280, this.stage.clientWidth || 720);
      const narrow = width < 520;
      const rows = (chart.y.ticks || []).length;
      const labels = this.rowed ? chart.y.ticks.map((t) => t[1]) : [digits(this.view.y1) + "00"];
      const widest = Math.max(...labels.map((t) => t.length), 3) * 7 + 14;
      const left = Math.min(widest, width * (narrow ? 0.34 : 0.28)) + (this.rowed ? 0 : 14);
      const room = Math.max(4, Math.floor((left - 12) / 6.4));
      const most = this.rowed ? Math.max(1, ...labels.map((text) => wrapped(text, room).length)) : 1;
      const inner = this.rowed ? rows * Math.max(34, LINE * most + 8) : narrow ? 200 : 260;
      Object.assign(this, { width, left, room, right: 14, top: 10, inner, bottom: 44, height: inner + 54 });
      this.plotWidth = width - left - this.right;
    }

    px(value) {
      return this.left + ((value - this.view.x0) / (this.view.x1 - this.view.x0)) * this.plotWidth;
    }

    py(value) {
      const share = (value - this.view.y0) / (this.view.y1 - this.view.y0);
      return this.rowed ? this.top + share * this.inner : this.top + (1 - share) * this.inner;
    }

    draw() {
      this.measure();
      if (this.chart.kind === "ranked") this.view.x1 = this.roomy();
      if (this.svg) this.svg.remove();
      this.svg = svg("svg", {
        viewBox: `0 0 ${this.width} ${this.height}`, class: "drawing", role: "img", tabindex: "0",
        "aria-label": `${this.chart.title}. ${this.chart.text}`,
      });
      this.stage.insertBefore(this.svg, this.tip);
      const clip = `clip-${this.chart.id}`;
      const box = svg("clipPath", { id: clip }, svg("defs", {}, this.svg));
      svg("rect", { x: this.left, y: this.top - 2, width: this.plotWidth, height: this.inner + 4 }, box);
      this.axes();
      this.layer = svg("g", { "clip-path": `url(#${clip})` }, this.svg);
      this[this.chart.kind]();
      this.marks = svg("g", { "aria-hidden": "true" }, this.svg);
      this.listen();
    }

    axes() {
      const { chart } = this;
      const group = svg("g", { class: "axes", "aria-hidden": "true" }, this.svg);
      const bottom = this.top + this.inner;
      const places = chart.x.ticks || this.places();
      const every = chart.x.ticks ? Math.ceil((places.length * this.widest(places)) / this.plotWidth) : 1;
      places.forEach(([at, text], k) => {
        const x = this.px(at);
        if (x < this.left - 1 || x > this.width - this.right + 1 || k % every) return;
        svg("line", { x1: x, x2: x, y1: this.top, y2: bottom, class: "grid" }, group);
        const label = svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, group, text);
        const half = label.getComputedTextLength() / 2;
        if (x + half > this.width) label.setAttribute("x", this.width - half);
      });
      if (this.rowed) this.rowLabels(group);
      else {
        const { y0, y1 } = this.view;
        for (const [at, text] of chart.y.log ? this.decades(y0, y1, 5) : ticks(y0, y1, 5).map((t) => [t, digits(t)])) {
          const y = this.py(at);
          svg("line", { x1: this.left, x2: this.width - this.right, y1: y, y2: y, class: "grid" }, group);
          svg("text", { x: this.left - 6, y: y + 4, "text-anchor": "end" }, group, text);
        }
        const middle = this.top + this.inner / 2;
        svg("text", { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, group, chart.y.label);
      }
      svg("text", { x: this.left + this.plotWidth / 2, y: this.height - 6, "text-anchor": "middle" }, group, chart.x.label);
    }

    places() {
      const { x0, x1 } = this.view;
      const wanted = this.plotWidth / 90;
      return this.chart.x.log ? this.decades(x0, x1, wanted) : ticks(x0, x1, wanted).map((t) => [t, digits(t)]);
    }

    decades(low, high, wanted) {
      if (high - low < 0.8) return ticks(low, high, wanted).map((t) => [t, digits(Number(Math.pow(10, t).toPrecision(2)))]);
      const steps = wanted >= 2 * (high - low) ? [1, 2, 5] : [1];
      const every = Math.max(1, Math.ceil((high - low) / wanted));
      const found = [];
      for (let k = Math.floor(low); k <= high; k++) {
        if (k % every) continue;
        for (const m of steps) found.push([k + Math.log10(m), digits(m * Math.pow(10, k))]);
      }
      return found.filter(([t]) => t >= low && t <= high);
    }

    real(x) {
      return this.chart.x.log ? Math.pow(10, x) : x;
    }

    widest(places) {
      return Math.max(...places.map((p) => p[1].length)) * 7 + 10;
    }

    rowLabels(group) {
      for (const [at, text] of this.chart.y.ticks) {
        const lines = wrapped(text, this.room);
        lines.forEach((line, k) => {
          const y = this.py(at) + 4 + LINE * (k - (lines.length - 1) / 2);
          svg("text", { x: this.left - 6, y, "text-anchor": "end" }, group, line);
        });
      }
    }

    line() {
      this.curves((s) => s.x.map((x, k) => [x, s.y[k]]));
    }

    step() {
      this.curves((s) => {
        const begins = s.x.length && s.x[0] <= this.full.x0 ? s.y[0] : 0; // no rise from 0 where it has begun
        const points = [[this.full.x0, begins]];
        s.x.forEach((x, k) => points.push([x, k ? s.y[k - 1] : begins], [x, s.y[k]]));
        if (s.x.length) points.push([this.full.x1, s.y[s.y.length - 1]]);
        return points;
      });
    }

    curves(points) {
      this.chart.series.forEach((series, k) => {
        if (this.hidden.has(series.name)) return;
        let path = "";
        let pen = "M";
        for (const [x, y] of points(series)) {
          if (x === null || y === null) { pen = "M"; continue; }
          path += `${pen}${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`;
          pen = "L";
        }
        const style = `fill:none;stroke-width:2;stroke:${colour(series.colour)}`;
        svg("path", { d: path, style, "stroke-dasharray": DASHES[k % 8] }, this.layer);
        (series.half || []).forEach((half, i) => { // intervals
          if (!half || series.y[i] === null) return;
          const [x, a, b] = [this.px(series.x[i]), this.py(series.y[i] - half), this.py(series.y[i] + half)];
          svg("path", { d: `M${x - 4} ${a}H${x + 4}M${x} ${a}V${b}M${x - 4} ${b}H${x + 4}`, class: "spread", style: `stroke:${colour(series.colour)}` }, this.layer);
        });
        if (this.chart.x.ticks) series.x.forEach((x, i) => this.marker(this.layer, this.px(x), this.py(series.y[i] || 0), k, series.colour));
      });
    }

    stacked() {
      // For each shown series the lower and upper edge of its band, bucket by bucket.
      const n = this.chart.series[0].y.length;
      let below = new Array(n).fill(0);
      return this.shown.map((series) => {
        const above = series.y.map((value, k) => below[k] + (value || 0));
        const band = { series, below, above };
        below = above;
        return band;
      });
    }

    area() {
      const edges = this.chart.series.length ? this.chart.series[0].x : [];
      const first = Math.max(0, lastAtMost(edges, this.view.x0));
      const last = Math.min(edges.length - 1, lastAtMost(edges, this.view.x1) + 1);
      for (const { series, below, above } of this.stacked()) {
        let up = "";
        let down = "";
        for (let k = first; k < last; k++) {
          const [a, b] = [this.px(edges[k]).toFixed(1), this.px(edges[k + 1]).toFixed(1)];
          const [y1, y0] = [this.py(above[k]).toFixed(1), this.py(below[k]).toFixed(1)];
          up += `${up ? "L" : "M"}${a} ${y1}L${b} ${y1}`;
          down = `L${b} ${y0}L${a} ${y0}${down}`;
        }
        if (up) svg("path", { d: `${up}${down}Z`, style: `fill:${colour(series.colour)}` }, this.layer);
      }
    }

    marker(parent, x, y, k, key) {
      const r = 4.5;
      const shapes = [
        () => svg("circle", { cx: x, cy: y, r }, parent),
        () => svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r }, parent),
        () => svg("path", { d: `M${x} ${y - r - 1}L${x + r + 1} ${y + r}L${x - r - 1} ${y + r}Z` }, parent),
        () => svg("path", { d: `M${x} ${y - r - 1}L${x + r + 1} ${y}L${x} ${y + r + 1}L${x - r - 1} ${y}Z` }, parent),
      ];
      const node = shapes[k % 4]();
      node.setAttribute("style", `fill:${colour(key)};stroke:var(--page);stroke-width:1`);
      return node;
    }

    scatter() {
      this.chart.series.forEach((series, k) => {
        if (this.hidden.has(series.name)) return;
        if (series.colour === "front") {
          const path = series.x.map((x, i) => `${i ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(series.y[i]).toFixed(1)}`);
          svg("path", { d: path.join(""), style: "fill:none;stroke:var(--text);stroke-width:1.2;opacity:0.7" }, this.layer);
          return;
        }
        series.x.forEach((x, i) => {
          if (x !== null && series.y[i] !== null) this.marker(this.layer, this.px(x), this.py(series.y[i]), k, series.colour);
        });
      });
      this.pointLabels();
    }

    pointLabels() {
      // Names beside the points of a small chart, where they do not lie on one another.
      const points = this.shown.filter((s) => s.colour !== "front")
        .flatMap((s) => s.x.map((x, i) => [this.px(x), this.py(s.y[i]), (s.labels || [])[i] || s.name]));
      if (points.length > 12) return;
      const taken = points.map(([x, y]) => [x - 5, y - 7, 10, 14]); // no label on a marker
      for (const [x, y, name] of points.sort((a, b) => a[1] - b[1])) {
        const free = ([text, right, up]) => {
          const wide = text.length * 6.6;
          const box = [right ? x + 8 : x - 8 - wide, y - 7 - up, wide, 14];
          const inside = box[0] > this.left && box[0] + wide < this.left + this.plotWidth;
          const hit = taken.some((b) => box[0] < b[0] + b[2] && b[0] < box[0] + box[2] && Math.abs(box[1] - b[1]) < 13);
          return inside && !hit ? box : null;
        };
        const short = name.length > 28 ? `${name.slice(0, 27)}\u2026` : name; // where the whole name has no room
        const found = [name, short].flatMap((t) => [0, 15, -15].flatMap((up) => [[t, true, up], [t, false, up]])).find(free);
        if (!found) continue;
        const [text, right, up] = found;
        taken.push(free(found));
        const place = { x: right ? x + 9 : x - 9, y: y + 4 - up, "text-anchor": right ? "start" : "end" };
        const label = svg("text", place, this.layer, text);
        if (text !== name) svg("title", {}, label, name);
      }
    }

    bars() {
      const rows = this.chart.y.ticks.length;
      const left = new Array(rows).fill(0);
      const height = (this.inner / rows) * 0.66;
      for (const series of this.shown) {
        series.y.forEach((value, k) => {
          const x = this.px(left[k]);
          const width = this.px(left[k] + (value || 0)) - x;
          left[k] += value || 0;
          if (width <= 0) return;
          svg("rect", { x, y: this.py(k) - height / 2, width, height, style: `fill:${colour(series.colour)}` }, this.layer);
          if (width < 38) return;
          const style = `fill:var(--on-${series.colour})`;
          svg("text", { x: x + width / 2, y: this.py(k) + 4, "text-anchor": "middle", style }, this.layer, `${digits(Number(value.toPrecision(3)))}`);
        });
      }
    }

    // The end of the scale that leaves each text its room behind its bar, where that is at most half of the width.
    roomy() {
      const [mean, , high] = this.chart.series;
      const ends = mean.y.map((value, k) => {
        const text = Math.min(0.5, (7.2 * mean.labels[k].length + 10) / this.plotWidth);
        return Math.max(value, high.y[k] === null ? 0 : high.y[k]) / (1 - text);
      });
      return Math.max(...ends, this.full.x1 / 1.3);
    }

    ranked() {
      const [mean, low, high, bound] = this.chart.series;
      const best = mean.colour; // the row that stands out
      const height = (this.inner / this.chart.y.ticks.length) * 0.6;
      const ends = mean.y.map((value, k) => {
        const [x, y] = [this.px(0), this.py(k)];
        svg("rect", { x, y: y - height / 2, width: Math.max(1, this.px(value) - x), height, style: `fill:${k === best ? "var(--p0)" : "var(--u-down)"}` }, this.layer);
        if (low.y[k] === null || high.y[k] === null || !(high.y[k] > low.y[k])) return value;
        const [a, b] = [this.px(Math.max(0, low.y[k])), this.px(high.y[k])];
        svg("path", { d: `M${a} ${y - 5}V${y + 5}M${a} ${y}H${b}M${b} ${y - 5}V${y + 5}`, style: "fill:none;stroke:var(--text);stroke-width:1.4" }, this.layer);
        return Math.max(value, high.y[k]);
      });
      const texts = ends.map((end, k) => {
        const text = svg("text", { x: this.px(end) + 8, y: this.py(k) + 4, class: "on-axis" }, this.layer, mean.labels[k]);
        if (k === best) text.setAttribute("style", "font-weight:650");
        if (this.px(end) + 8 + text.getComputedTextLength() > this.width - 2) { // no room: on the bar, in front of its end
          const before = this.px(Math.max(0, low.y[k] === null ? mean.y[k] : low.y[k])) - 6;
          for (const [key, to] of [["x", before], ["text-anchor", "end"]]) text.setAttribute(key, to);
        }
        return text.getBBox();
      });
      if (!bound) return;
      const x = this.px(bound.y[0]);
      let [path, y] = ["", this.top];
      for (const box of texts) { // the line leaves out the texts that stand where it is
        if (box.x - 4 > x || box.x + box.width + 4 < x) continue;
        path += `M${x} ${y}V${box.y}`;
        y = box.y + box.height;
      }
      svg("path", { d: `${path}M${x} ${y}V${this.top + this.inner}`, style: "fill:none;stroke:var(--text)", "stroke-dasharray": "5 4" }, this.layer);
    }

    tornado() {
      const base = this.chart.series[2].y[0];
      const height = (this.inner / this.chart.y.ticks.length) * 0.6;
      for (const series of this.chart.series.slice(0, 2)) {
        if (this.hidden.has(series.name)) continue;
        series.y.forEach((value, k) => {
          if (value === null) return;
          const [a, b] = [this.px(Math.min(value, base)), this.px(Math.max(value, base))];
          const style = `fill:${colour(series.colour)}`;
          svg("rect", { x: a, y: this.py(k) - height / 2, width: Math.max(1, b - a), height, style }, this.layer);
          const [at, anchor] = value < base ? [a - 4, "end"] : [b + 4, "start"];
          svg("text", { x: at, y: this.py(k) + 4, "text-anchor": anchor }, this.layer, series.labels[k]);
        });
      }
      const x = this.px(base);
      svg("line", { x1: x, x2: x, y1: this.top, y2: this.top + this.inner, style: "stroke:var(--text)" }, this.layer);
    }

    listen() {
      const node = this.svg;
      const at = (event) => {
        const box = node.getBoundingClientRect();
        const scale = this.width / box.width;
        return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      };
      const value = (x) => this.view.x0 + ((x - this.left) / this.plotWidth) * (this.view.x1 - this.view.x0);
      node.addEventListener("pointermove", (event) => {
        const [x, y] = at(event);
        if (this.dragged !== undefined) this.rubber(this.dragged, x);
        else this.hover(x, y, value(x));
      });
      node.addEventListener("pointerleave", () => this.leave());
      node.addEventListener("pointerdown", (event) => {
        if (this.rowed || event.button) return;
        this.dragged = at(event)[0];
        node.setPointerCapture(event.pointerId);
      });
      node.addEventListener("pointerup", (event) => {
        const [from, to] = [this.dragged, at(event)[0]];
        this.dragged = undefined;
        if (from !== undefined && Math.abs(to - from) > 6) this.setX(value(Math.min(from, to)), value(Math.max(from, to)));
        else if (from !== undefined && this.onpick && this.chart.link) this.onpick(value(to) * this.chart.link);
      });
      node.addEventListener("dblclick", () => this.reset());
      node.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      const span = this.view.x1 - this.view.x0;
      const zooms = !this.rowed;
      const act = {
        "+": () => zooms && this.zoom(0.5), "=": () => zooms && this.zoom(0.5), "-": () => zooms && this.zoom(2),
        0: () => this.reset(), Escape: () => this.leave(),
        ArrowLeft: () => (event.shiftKey ? this.setX(this.view.x0 - span / 4, this.view.x1 - span / 4) : this.walk(-1)),
        ArrowRight: () => (event.shiftKey ? this.setX(this.view.x0 + span / 4, this.view.x1 + span / 4) : this.walk(1)),
        ArrowUp: () => this.walk(-1), ArrowDown: () => this.walk(1),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
      // Drawing anew replaces the element that had the focus.
      if (document.activeElement !== this.svg) this.svg.focus({ preventScroll: true });
    }

    walk(step) {
      const steps = this.rowed ? this.chart.y.ticks.length : 24;
      this.cursor = this.cursor === null ? (step > 0 ? 0 : steps - 1) : Math.max(0, Math.min(steps - 1, this.cursor + step));
      const place = (this.cursor + 0.5) / steps;
      const x = this.left + (this.rowed ? 0.5 : place) * this.plotWidth;
      const y = this.rowed ? this.top + place * this.inner : this.top + this.inner / 2;
      this.hover(x, y, this.view.x0 + (this.rowed ? 0.5 : place) * (this.view.x1 - this.view.x0));
      this.live.textContent = this.tip.textContent;
    }

    rubber(from, to) {
      this.marks.textContent = "";
      const [a, b] = [Math.max(this.left, Math.min(from, to)), Math.min(this.left + this.plotWidth, Math.max(from, to))];
      svg("rect", { x: a, y: this.top, width: Math.max(0, b - a), height: this.inner, class: "rubber" }, this.marks);
    }

    leave() {
      this.tip.hidden = true;
      this.marks.textContent = "";
      this.cursor = null;
    }

    hover(x, y, value) {
      this.marks.textContent = "";
      const inside = x >= this.left && x <= this.left + this.plotWidth && y >= this.top && y <= this.top + this.inner;
      const lines = inside ? this.readout(x, y, value) : null;
      if (!lines || !lines.length) { this.tip.hidden = true; return; }
      this.tip.textContent = "";
      lines.forEach((line, k) => html("div", k ? "" : "first", this.tip, line));
      this.tip.hidden = false;
      const box = this.stage.getBoundingClientRect();
      const scale = box.width / this.width;
      const room = box.width - this.tip.offsetWidth - 8;
      this.tip.style.left = `${Math.max(0, Math.min(x * scale + 14, room))}px`;
      this.tip.style.top = `${Math.max(0, y * scale - this.tip.offsetHeight - 10)}px`;
    }

    readout(x, y, value) {
      const { chart } = this;
      if (chart.kind === "scatter") return this.nearest(x, y);
      const row = Math.round(this.view.y0 + ((y - this.top) / this.inner) * (this.view.y1 - this.view.y0));
      if (this.rowed) {
        const name = (chart.y.ticks[row] || [])[1];
        if (name === undefined) return null;
        if (chart.kind === "ranked") return [name, chart.series[0].labels[row]];
        const told = this.shown.filter((s) => s.y.length > row && s.colour !== "front").map((s) =>
          chart.kind === "bars" ? `${s.name}: ${digits(s.y[row])} %` : `${s.name} ${s.labels[row]}: ${digits(s.y[row])}`);
        return [name, ...told];
      }
      svg("line", { x1: x, x2: x, y1: this.top, y2: this.top + this.inner, class: "cross" }, this.marks);
      const [, name, unit] = chart.x.label.match(/^(.*?)(?: \(([^()]*)\))?$/);
      const where = `${name} ${digits(this.real(value))} ${unit || ""}`;
      return [this.placeName(value, where), ...this.shown.map((s) => `${s.name}: ${this.valueAt(s, value)}`)];
    }

    placeName(value, otherwise) {
      if (!this.chart.x.ticks) return otherwise;
      const tick = this.chart.x.ticks.reduce((a, b) => (Math.abs(b[0] - value) < Math.abs(a[0] - value) ? b : a));
      return `${this.chart.x.label} ${tick[1]}`;
    }

    valueAt(series, value) {
      const unit = (this.chart.y.label.match(/\(([^)]*)\)$/) || ["", ""])[1];
      let k = lastAtMost(series.x, value);
      if (this.chart.kind === "line") k = Math.max(0, Math.min(series.y.length - 1, Math.round(value)));
      if (this.chart.kind === "area") k = Math.max(0, Math.min(series.y.length - 1, k));
      const found = k < 0 ? 0 : series.y[k];
      return `${digits(found)} ${unit}`;
    }

    nearest(x, y) {
      let best = null;
      for (const series of this.shown) {
        if (series.colour === "front") continue;
        series.x.forEach((sx, k) => {
          if (sx === null || series.y[k] === null) return;
          const [px, py] = [this.px(sx), this.py(series.y[k])];
          const distance = Math.hypot(px - x, py - y);
          if (distance < 24 && (!best || distance < best.distance)) best = { distance, series, k, px, py };
        });
      }
      if (!best) return null;
      svg("circle", { cx: best.px, cy: best.py, r: 8, class: "ring" }, this.marks);
      const { series, k } = best;
      return [series.name, ...((series.labels || [])[k] ? [series.labels[k]] : []),
        `${this.chart.x.label}: ${digits(this.real(series.x[k]))}`, `${this.chart.y.label}: ${digits(this.chart.y.log ? Math.pow(10, series.y[k]) : series.y[k])}`];
    }
  }

  function draw(figure, chart) {
    const view = new View(figure, chart);
    views.push(view);
    return view;
  }

  function drop(figure) {
    const k = views.findIndex((view) => view.figure === figure);
    if (k >= 0) views.splice(k, 1);
  }

  function redraw() {
    for (const view of views) if (view.figure.isConnected && view.stage.clientWidth) view.draw();
  }

  return { draw, drop, redraw, digits, ticks, html, views };
})();
