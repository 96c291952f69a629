"use strict";
// Gantt chart of a million bars on one canvas. Zoomed out, every pixel shows the share of its time and rows that
// each class of bars covers (exact coverage by prefix sums, linear in bars plus pixels); zoomed in, bars are drawn
// one by one.
const Gantt = (() => {
  const FEW = 6000; // bars drawn one by one
  const LEFT = 96;
  const TOP = 26;
  const views = [];

  async function inflate(id) {
    const text = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function words(bytes, n, at) {
    const found = new Int32Array(n);
    const [a, b, c, d] = [at, at + n, at + 2 * n, at + 3 * n];
    for (let k = 0; k < n; k++) found[k] = bytes[a + k] | (bytes[b + k] << 8) | (bytes[c + k] << 16) | (bytes[d + k] << 24);
    return found;
  }

  function unpack(bytes, header) {
    const n = header.count;
    const row = words(bytes, n, 0);
    const start = words(bytes, n, 4 * n);
    const length = words(bytes, n, 8 * n);
    const gpus = words(bytes, n, 12 * n);
    const offset = new Int32Array(header.rows + 1);
    let firstStart = 0;
    for (let k = 0, r = 0; k < n; k++) {
      const fresh = k === 0 || row[k] !== 0;
      r += row[k];
      row[k] = r;
      start[k] += fresh ? firstStart : start[k - 1] + length[k - 1];
      if (fresh) firstStart = start[k];
      offset[r + 1] = k + 1;
    }
    for (let r = 0; r < header.rows; r++) if (offset[r + 1] < offset[r]) offset[r + 1] = offset[r];
    const small = (k) => bytes.subarray((16 + k) * n, (17 + k) * n);
    return { n, rows: header.rows, row, start, length, gpus, offset, kind: small(0), use: small(1), busy: small(2) };
  }

  function seconds(value) {
    const size = Math.abs(value);
    const units = [[172800, "d", 86400], [7200, "h", 3600], [120, "min", 60], [1, "s", 1], [1e-3, "ms", 1e-3], [0, "us", 1e-6]];
    const [, name, scale] = size === 0 ? units[3] : units.find((u) => size >= u[0]);
    return `${Number((value / scale).toPrecision(4))} ${name}`;
  }

  class View {
    constructor(box, header, bars, names) {
      Object.assign(this, { box, header, bars, names });
      this.mode = "kind";
      this.lanes = oneEach(new Int32Array(0), bars.rows); // until `sort` says how
      this.canvas = box.querySelector("canvas");
      this.tip = box.querySelector(".tip");
      this.live = box.querySelector("[aria-live]");
      this.end = 1;
      for (let k = 0; k < bars.n; k++) this.end = Math.max(this.end, bars.start[k] + bars.length[k]);
      this.listen();
    }

    reset() {
      this.x0 = 0;
      this.x1 = this.end;
      this.y0 = 0;
      this.y1 = Math.max(1, this.lanes.count);
      this.schedule();
    }

    open() {
      // Where the work is: without the long ends that one late job or one early one would make.
      const { bars } = this;
      const work = [];
      let total = 0;
      for (let k = 0; k < bars.n; k++) if (bars.kind[k]) work.push(k), (total += bars.length[k] * bars.gpus[k]);
      const at = (share, place) => {
        let sum = 0;
        work.sort((a, b) => place(a) - place(b));
        for (const k of work) if ((sum += bars.length[k] * bars.gpus[k]) >= share * total) return place(k);
        return this.end;
      };
      const [low, high] = [at(0.01, (k) => bars.start[k]), at(0.99, (k) => bars.start[k] + bars.length[k])];
      if (!(total > 0) || high - low > 0.6 * this.end) return;
      this.x0 = Math.max(0, low - 0.05 * (high - low));
      this.x1 = Math.min(this.end, high + 0.05 * (high - low) + 1);
      this.schedule();
    }

    theme() {
      const style = getComputedStyle(this.box);
      const read = (name) => style.getPropertyValue(name).trim();
      const uses = this.header.uses.map((use) => read(`--u-${use}`));
      const kinds = this.header.kinds.map((kind) => read(`--k-${kind}`));
      return { fault: read("--k-fault"), text: read("--text"), soft: read("--soft"), grid: read("--grid"), page: read("--page"), uses, kinds };
    }

    size() {
      const ratio = Math.min(2, window.devicePixelRatio || 1);
      const width = Math.max(260, this.box.clientWidth);
      const height = clamp(TOP + 4 + 34 * this.lanes.count, 150, 460);
      if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
        this.canvas.style.height = `${height}px`;
      }
      const left = width < 480 ? 64 : LEFT;
      Object.assign(this, { ratio, width, tall: height, left, plotW: width - left - 4, plotH: height - TOP - 4 });
    }

    schedule() {
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => this.paint());
    }

    code(k) {
      // Colour class of a bar: queued bars and those of features keep theirs in both ways of colouring.
      const kind = this.bars.kind[k];
      const fixed = kind === 0 || this.header.kinds[kind] === "beside";
    return this.mode === "kind" || fixed ? kind : this.header.kinds.length + this.bars.use[k];
    }

    paint() {
      const began = performance.now();
      cancelAnimationFrame(this.waiting);
      this.waiting = 0;
      this.size();
      this.colours = this.theme();
      const context = this.canvas.getContext("2d");
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      const low = Math.max(0, Math.floor(this.y0));
      const high = Math.min(this.lanes.count, Math.ceil(this.y1));
      const few = this.visible(low, high, FEW);
      this.crisp = few !== null;
      if (few) this.single(context, few);
      else this.density(context, low, high);
      this.frame(context);
      this.drawMs = performance.now() - began;
      this.readyMs = this.readyMs || performance.now() - this.began; // from the click to the first picture
      this.canvas.dataset.drawn = String(Number(this.canvas.dataset.drawn || 0) + 1);
      this.canvas.dataset.crisp = String(this.crisp);
    }

    visible(low, high, most) {
      // Bars in view, or null when there are more than `most`.
      const { offset, start, length } = this.bars;
      const { first, jobs } = this.lanes;
      const found = [];
      if ((high - low) > 4 * most) return null;
      for (let at = low; at < high; at++) {
        for (let i = first[at]; i < first[at + 1]; i++) {
          for (let k = offset[jobs[i]]; k < offset[jobs[i] + 1]; k++) {
            if (start[k] >= this.x1 || start[k] + length[k] <= this.x0) continue;
            found.push([at, k]);
            if (found.length > most) return null;
          }
        }
      }
      return found;
    }

    density(context, low, high) {
      const { bars, ratio } = this;
      const [w, h] = [Math.round(this.plotW * ratio), Math.round(this.plotH * ratio)];
      const palette = [...this.colours.kinds, ...this.colours.uses].map(rgb);
      const stride = w + 2;
      const layers = new Array(palette.length);
      const [sx, sy] = [w / (this.x1 - this.x0), h / (this.y1 - this.y0)];
      for (let at = low; at < high; at++) {
        // A row covers the pixel rows from top to bottom; thin rows share one.
        const top = Math.max(0, (at - this.y0) * sy);
        const bottom = Math.min(h, (at + 1 - this.y0) * sy);
        const [first, last] = [Math.floor(top), Math.min(h - 1, Math.ceil(bottom) - 1)];
        for (let i = this.lanes.first[at]; i < this.lanes.first[at + 1]; i++) {
          const r = this.lanes.jobs[i];
          for (let k = bars.offset[r]; k < bars.offset[r + 1]; k++) {
            const a = Math.max(0, (bars.start[k] - this.x0) * sx);
            const b = Math.min(w, (bars.start[k] + bars.length[k] - this.x0) * sx);
            if (b <= a) continue;
            const code = this.code(k);
            const layer = layers[code] || (layers[code] = new Float32Array(stride * h));
            for (let y = first; y <= last; y++) ramp(layer, y * stride, a, b, Math.min(bottom, y + 1) - Math.max(top, y));
          }
        }
      }
      const image = context.createImageData(w, h);
      const page = rgb(this.colours.page);
      const used = layers.map((layer, code) => layer && [layer, palette[code]]).filter(Boolean);
      const level = new Float64Array(used.length);
      for (let y = 0; y < h; y++) {
        level.fill(0);
        for (let x = 0; x < w; x++) {
          let [red, green, blue, left] = [0, 0, 0, 1];
          let sum = 0;
          for (let i = 0; i < used.length; i++) {
            const value = (level[i] += used[i][0][y * stride + x]);
            if (value > 1e-3) { const c = used[i][1]; red += value * c[0]; green += value * c[1]; blue += value * c[2]; sum += value; }
          }
          const at = 4 * (y * w + x);
          // Little but something stays visible; more than everything (rows of one pixel) is scaled to it.
          const scale = sum > 1 ? 1 / sum : sum > 0 && sum < 0.12 ? 0.12 / sum : 1;
          left = 1 - Math.min(1, sum * scale);
          image.data[at] = red * scale + left * page[0];
          image.data[at + 1] = green * scale + left * page[1];
          image.data[at + 2] = blue * scale + left * page[2];
          image.data[at + 3] = 255;
        }
      }
      context.putImageData(image, Math.round(this.left * ratio), Math.round(TOP * ratio));
    }

    single(context, found) {
      const { bars } = this;
      const palette = [...this.colours.kinds, ...this.colours.uses];
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.save();
      context.beginPath();
      context.rect(this.left, TOP, this.plotW, this.plotH);
      context.clip();
      const rowH = this.plotH / (this.y1 - this.y0);
      const gap = rowH > 6 ? Math.min(3, rowH * 0.18) : 0;
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const [at, k] of found) {
        const x = this.px(bars.start[k]);
        const width = Math.max(0.6, this.px(bars.start[k] + bars.length[k]) - x);
        const y = this.py(at) + gap / 2;
        const queued = bars.kind[k] === 0;
        const height = Math.max(0.6, rowH - gap);
        context.fillStyle = palette[this.code(k)];
        if (queued && rowH > 6) context.fillRect(x, y + height * 0.35, width, height * 0.3);
        else context.fillRect(x, y, width, height);
        const from = Math.max(x, this.left) + 5;
        const text = `${bars.gpus[k]} GPU${bars.gpus[k] === 1 ? "" : "s"}`;
        if (!queued && rowH >= 14 && x + width - from > 7 * text.length) {
          context.fillStyle = contrast(palette[this.code(k)]);
          context.fillText(text, from, y + height / 2 + 0.5);
        }
      }
      context.restore();
    }

    px(tick) {
      return this.left + ((tick - this.x0) / (this.x1 - this.x0)) * this.plotW;
    }

    py(row) {
      return TOP + ((row - this.y0) / (this.y1 - this.y0)) * this.plotH;
    }

    frame(context) {
      const { header, colours } = this;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = colours.soft;
      context.strokeStyle = colours.grid;
      context.lineWidth = 1;
      context.textBaseline = "alphabetic";
      context.textAlign = "center";
      const time = (tick) => header.start + tick * header.tick;
      const span = time(this.x1) - time(this.x0);
      const unit = span >= 172800 ? ["d", 86400] : span >= 7200 ? ["h", 3600] : span >= 120 ? ["min", 60] : ["s", 1];
      for (const at of Charts.ticks(time(this.x0) / unit[1], time(this.x1) / unit[1], this.plotW / 110)) {
        const x = this.px((at * unit[1] - header.start) / header.tick);
        context.globalAlpha = 0.4;
        context.beginPath();
        context.moveTo(x, TOP - 4);
        context.lineTo(x, TOP + this.plotH);
        context.stroke();
        context.globalAlpha = 1;
        context.fillText(`${at} ${unit[0]}`, Math.min(x, this.width - 24), TOP - 9);
      }
      context.strokeStyle = colours.fault;
      context.globalAlpha = 0.55;
      for (const time_s of this.faults || []) {
        const x = this.px((time_s - header.start) / header.tick);
        if (x < this.left || x > this.width) continue;
        context.beginPath();
        context.moveTo(x, TOP);
        context.lineTo(x, TOP + this.plotH);
        context.stroke();
      }
      context.globalAlpha = 1;
      context.textAlign = "right";
      context.textBaseline = "middle";
      const rowH = this.plotH / (this.y1 - this.y0);
      const step = this.lanes.titles ? 1 : Math.max(1, Math.ceil(15 / rowH));
      let below = -1e9;
      for (let at = Math.ceil(this.y0 / step) * step; at < Math.min(this.y1, this.lanes.count); at += step) {
        const y = this.py(at + (rowH >= 15 ? 0.5 : 0));
        if (y < TOP + 4 || y > TOP + this.plotH - 2) continue;
        if (this.lanes.titles && (!this.label(at) || y - below < 13)) continue;
        below = y;
        context.fillText(fitted(context, this.label(at), this.left - 8), this.left - 6, y);
      }
      if (this.cursor !== undefined) this.outline(context);
    }

    outline(context) {
      const [at, k] = this.cursor;
      const [x, y] = [this.px(this.bars.start[k]), this.py(at)];
      const width = Math.max(3, this.px(this.bars.start[k] + this.bars.length[k]) - x);
      context.strokeStyle = this.colours.text;
      context.lineWidth = 2;
      context.strokeRect(x, y, width, Math.max(3, this.py(at + 1) - y));
    }

    label(at) {
      // A row with several jobs is named by its number.
      const { first, jobs, titles } = this.lanes;
      if (titles) return titles[at];
      return this.packed ? String(at + 1) : this.name(jobs[first[at]]);
    }

    name(row) {
      return this.names[row] === undefined ? `job ${row}` : String(this.names[row]);
    }

    barAt(x, y) {
      const { bars } = this;
      const at = Math.floor(this.y0 + ((y - TOP) / this.plotH) * (this.y1 - this.y0));
      const tick = this.x0 + ((x - this.left) / this.plotW) * (this.x1 - this.x0);
      const near = (1.5 / this.plotW) * (this.x1 - this.x0);
      if (x < this.left || at < 0 || at >= this.lanes.count || y < TOP) return null;
      let best = null;
      for (let i = this.lanes.first[at]; i < this.lanes.first[at + 1]; i++) {
        const r = this.lanes.jobs[i];
        for (let k = bars.offset[r]; k < bars.offset[r + 1]; k++) {
          const off = Math.max(bars.start[k] - tick, tick - bars.start[k] - bars.length[k], 0);
          if (off <= near && (!best || off < best[2])) best = [at, k, off];
        }
      }
      return best;
    }

    tell(k) {
      const { bars, header } = this;
      const from = header.start + bars.start[k] * header.tick;
      const long = bars.length[k] * header.tick;
      const told = [this.name(bars.row[k]), `${header.words[header.kinds[bars.kind[k]]]}, ${seconds(long)}`, `from ${seconds(from)} to ${seconds(from + long)}`];
      if (header.kinds[bars.kind[k]] === "beside") told.push(`${bars.gpus[k]} GPUs of ${this.nodes[this.nodeOf[bars.row[k]]]} at first`);
      else if (bars.kind[k]) {
        told.push(`${bars.gpus[k]} GPUs, ${Math.round(bars.busy[k] / 2.55)} % computing`);
        if (bars.use[k]) told.push(`most time: ${header.words[header.uses[bars.use[k]]]}`);
      }
      return told;
    }

    show(found, x, y) {
      this.tip.hidden = !found;
      if (!found) return;
      this.tip.textContent = "";
      this.tell(found[1]).forEach((line, k) => Charts.html("div", k ? "" : "first", this.tip, line));
      this.tip.style.left = `${Math.max(0, Math.min(x + 14, this.width - this.tip.offsetWidth - 6))}px`;
      this.tip.style.top = `${Math.max(0, y - this.tip.offsetHeight - 8)}px`;
    }

    zoom(factorX, factorY, x, y) {
      const tick = x === undefined ? (this.x0 + this.x1) / 2 : this.x0 + ((x - this.left) / this.plotW) * (this.x1 - this.x0);
      const row = y === undefined ? (this.y0 + this.y1) / 2 : this.y0 + ((y - TOP) / this.plotH) * (this.y1 - this.y0);
      const spanX = clamp((this.x1 - this.x0) * factorX, Math.min(20, this.end), this.end);
      const spanY = clamp((this.y1 - this.y0) * factorY, Math.min(4, this.lanes.count), this.lanes.count);
      const [shareX, shareY] = [(tick - this.x0) / (this.x1 - this.x0), (row - this.y0) / (this.y1 - this.y0)];
      this.place(tick - shareX * spanX, spanX, row - shareY * spanY, spanY);
    }

    place(x0, spanX, y0, spanY) {
      this.x0 = clamp(x0, 0, this.end - spanX);
      this.x1 = this.x0 + spanX;
      this.y0 = clamp(y0, 0, Math.max(0, this.lanes.count - spanY));
      this.y1 = this.y0 + Math.max(1, spanY);
      this.schedule();
    }

    pan(shareX, shareY) {
      const [spanX, spanY] = [this.x1 - this.x0, this.y1 - this.y0];
      this.place(this.x0 + shareX * spanX, spanX, this.y0 + shareY * spanY, spanY);
    }

    goTo(time) {
      // Around a time, keeping the zoom, at least closer than the whole.
      const tick = (time - this.header.start) / this.header.tick;
      const span = Math.min(this.x1 - this.x0, this.end / 4);
      this.place(tick - span / 2, span, this.y0, this.y1 - this.y0);
    }

    find(text) {
      const wanted = text.trim().toLowerCase();
      const { rows, offset } = this.bars;
      const first = this.cursor === undefined ? 0 : this.bars.row[this.cursor[1]] + 1;
      for (let i = 0; wanted && i < rows; i++) {
        const r = (first + i) % rows;
        if (!this.name(r).toLowerCase().includes(wanted) || offset[r] === offset[r + 1]) continue;
        this.select(this.lanes.of[r], offset[r]);
        return true;
      }
      return false;
    }

    select(at, k) {
      this.cursor = [at, k];
      const [spanX, spanY] = [this.x1 - this.x0, Math.min(this.y1 - this.y0, 24)];
      const centre = this.bars.start[k] + this.bars.length[k] / 2;
      const stays = at >= this.y0 && at + 1 <= this.y1 && spanY === this.y1 - this.y0;
      const left = centre > this.x0 && centre < this.x1 ? this.x0 : centre - spanX / 2;
      this.place(left, spanX, stays ? this.y0 : at - spanY / 2, spanY);
      this.live.textContent = this.tell(k).join(", ");
      this.paint();
      this.show(this.cursor, clamp(this.px(centre), this.left, this.width), this.py(at));
    }

    walk(step) {
      // The next or previous bar: of the same job, then of the job after or before it.
      const first = () => this.lanes.jobs[this.lanes.first[Math.min(Math.floor(this.y0), this.lanes.count - 1)]];
      const k = this.cursor ? this.cursor[1] + step : this.bars.offset[first()];
      if (k >= 0 && k < this.bars.n) this.select(this.lanes.of[this.bars.row[k]], k);
    }

    sort(by) {
      const { bars } = this;
      const key = new Float64Array(bars.rows);
      this.packed = by === "packed" || by === "size" || by === "node";
      for (let r = 0; r < bars.rows; r++) {
        const [a, b] = [bars.offset[r], bars.offset[r + 1]];
        if (a === b) continue;
        key[r] = this.packed ? bars.start[a] : by === "arrival" ? r : 0;
        if (by === "waiting") for (let k = a; k < b; k++) if (!bars.kind[k]) key[r] -= bars.length[k];
        if (by === "long") key[r] = -(bars.start[b - 1] + bars.length[b - 1] - bars.start[a]);
      }
      // A job that has not arrived by the end has no bar and no row.
      const there = Int32Array.from({ length: bars.rows }, (_, k) => k).filter((r) => bars.offset[r] < bars.offset[r + 1]);
      const order = there.sort((a, b) => key[a] - key[b] || a - b);
      this.lanes = by === "packed" ? pack(bars, order) : this.packed ? this.grouped(order, by) : oneEach(order, bars.rows);
      this.cursor = undefined;
      this.reset();
    }

    grouped(order, by) {
      // Packed rows by number of GPUs, or by the node of the first GPU that a job held; labels name the group.
      const { bars } = this;
      const group = new Map();
      for (const r of order) {
        let most = 0;
        for (let k = bars.offset[r]; k < bars.offset[r + 1]; k++) most = Math.max(most, bars.gpus[k]);
        const key = by === "size" ? most : this.nodeOf[r];
        if (!group.has(key)) group.set(key, []);
        group.get(key).push(r);
      }
      const whole = { count: 0, first: [0], jobs: [], of: new Int32Array(bars.rows), titles: [] };
      for (const key of [...group.keys()].sort((a, b) => a - b)) {
        const lanes = pack(bars, group.get(key));
        const title = by === "node" ? (key < 0 ? "never ran" : this.nodes[key]) : key === 0 ? "never ran" : `${key} GPU${key === 1 ? "" : "s"}`;
        for (let at = 0; at < lanes.count; at++) {
          for (let i = lanes.first[at]; i < lanes.first[at + 1]; i++) {
            whole.of[lanes.jobs[i]] = whole.count;
            whole.jobs.push(lanes.jobs[i]);
          }
          whole.count++;
          whole.first.push(whole.jobs.length);
          whole.titles.push(at === 0 ? title : "");
        }
      }
      return whole;
    }

    listen() {
      const { canvas } = this;
      const at = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.onpointermove = (event) => {
        const [x, y] = at(event);
        if (this.drag) {
          const [px, py] = this.drag;
          this.drag = [x, y, this.drag[2] || Math.hypot(x - px, y - py) > 3];
          this.pan(-(x - px) / this.plotW, -(y - py) / this.plotH);
        } else this.show(this.barAt(x, y), x, y);
      };
      canvas.onpointerdown = (event) => { this.drag = [...at(event), false]; canvas.setPointerCapture(event.pointerId); };
      canvas.onpointerup = (event) => {
        const moved = this.drag && this.drag[2];
        this.drag = undefined;
        const found = moved ? null : this.barAt(...at(event));
        if (found) { this.cursor = [found[0], found[1]]; this.live.textContent = this.tell(found[1]).join(", "); this.schedule(); }
      };
      canvas.onpointerleave = () => { this.tip.hidden = true; };
      canvas.ondblclick = () => this.reset();
      // The wheel scrolls the page until the chart has the focus, so that nobody is caught by it.
      canvas.onwheel = (event) => {
        if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const factor = Math.exp(clamp(event.deltaY, -120, 120) * 0.004);
        const [x, y] = at(event);
        this.zoom(event.shiftKey ? 1 : factor, event.shiftKey || event.altKey ? factor : 1, x, y);
      };
      canvas.onkeydown = (event) => this.key(event);
    }

    key(event) {
      const act = {
        ArrowLeft: () => this.pan(-0.15, 0), ArrowRight: () => this.pan(0.15, 0),
        ArrowUp: () => this.pan(0, -0.15), ArrowDown: () => this.pan(0, 0.15),
        "+": () => this.zoom(0.6, 1), "=": () => this.zoom(0.6, 1), "-": () => this.zoom(1 / 0.6, 1), _: () => this.zoom(1, 1 / 0.6),
        "*": () => this.zoom(1, 0.6), "/": () => this.zoom(1, 1 / 0.6),
        PageUp: () => this.pan(0, -0.9), PageDown: () => this.pan(0, 0.9), Home: () => this.pan(-1e9, 0), End: () => this.pan(1e9, 0),
        n: () => this.walk(1), p: () => this.walk(-1), 0: () => this.reset(), Escape: () => { this.tip.hidden = true; this.cursor = undefined; this.schedule(); },
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    }
  }

  function oneEach(order, rows) {
    const of = new Int32Array(rows);
    order.forEach((r, at) => { of[r] = at; });
    return { count: order.length, first: Int32Array.from({ length: order.length + 1 }, (_, k) => k), jobs: order, of };
  }

  function pack(bars, order) {
    // Jobs by their begin, each into the lowest row that is free: as many rows as there were jobs at once.
    const free = new Heap();
    const busy = new Heap();
    const of = new Int32Array(bars.rows);
    const [begin, end] = [(r) => bars.start[bars.offset[r]], (r) => bars.start[bars.offset[r + 1] - 1] + bars.length[bars.offset[r + 1] - 1]];
    let count = 0;
    for (const r of order) {
      while (busy.size && busy.least <= begin(r)) { const at = busy.pop(); free.push(at, at); }
      of[r] = free.size ? free.pop() : count++;
      busy.push(end(r), of[r]);
    }
    const first = new Int32Array(count + 1);
    for (const r of order) first[of[r] + 1]++;
    for (let k = 0; k < count; k++) first[k + 1] += first[k];
    const at = first.slice();
    const jobs = new Int32Array(order.length);
    for (const r of order) jobs[at[of[r]]++] = r;
    return { count, first, jobs, of };
  }

  class Heap {
    constructor() { this.keys = []; this.values = []; }
    get size() { return this.keys.length; }
    get least() { return this.keys[0]; }

    push(key, value) {
      const { keys, values } = this;
      let k = keys.length;
      while (k > 0) {
        const up = (k - 1) >> 1;
        if (keys[up] <= key) break;
        keys[k] = keys[up];
        values[k] = values[up];
        k = up;
      }
      keys[k] = key;
      values[k] = value;
    }

    pop() {
      const { keys, values } = this;
      const [found, key, value] = [values[0], keys.pop(), values.pop()];
      const n = keys.length;
      if (n === 0) return found;
      let k = 0;
      for (let down = 1; down < n; down = 2 * k + 1) {
        if (down + 1 < n && keys[down + 1] < keys[down]) down++;
        if (keys[down] >= key) break;
        keys[k] = keys[down];
        values[k] = values[down];
        k = down;
      }
      keys[k] = key;
      values[k] = value;
      return found;
    }
  }

  function ramp(layer, base, a, b, part) {
    // Adds part x (overlap of [a, b) with each pixel), as differences: a prefix sum gives the coverage.
    const [ia, ib] = [a | 0, b | 0];
    const [fa, fb] = [a - ia, b - ib];
    layer[base + ia] += (1 - fa) * part;
    layer[base + ia + 1] += fa * part;
    layer[base + ib] -= (1 - fb) * part;
    layer[base + ib + 1] -= fb * part;
  }

  function rgb(text) {
    const hex = text.replace("#", "");
    return [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16));
  }

  function contrast(text) {
    const [r, g, b] = rgb(text);
    return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111111" : "#ffffff";
  }

  function fitted(context, text, room) {
    // As much of a name as there is room for; its end stays, since names of jobs differ in their numbers.
    const tail = text.slice(-3);
    let shown = text;
    for (let n = text.length - 4; n > 0 && context.measureText(shown).width > room; n--) shown = `${text.slice(0, n)}\u2026${tail}`;
    return shown;
  }

  function clamp(value, low, high) {
    return Math.max(low, Math.min(high, value));
  }

  async function open(box, run) {
    const began = performance.now();
    const [packed, names] = await Promise.all([inflate(`bars-${run.key}`), inflate(`names-${run.key}`)]);
    const said = JSON.parse(new TextDecoder().decode(names));
    const view = new View(box, run.bars, unpack(packed, run.bars), said.names);
    Object.assign(view, { nodes: said.nodes, nodeOf: said.node_of });
    view.began = began;
    views.length = 0;
    views.push(view);
    return view;
  }

  return { open, inflate, unpack, pack, seconds, views };
})();
