// Renders the data of the page. Text of the model reaches the page as text nodes and canvas text only, never as markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const ROW = 28;

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function scaled(x, units) {
  const size = Math.abs(x);
  const [factor, name] = units.find(([f]) => size >= f) || units[units.length - 1];
  return (x / factor).toLocaleString("en", { maximumSignificantDigits: 4 }) + " " + name;
}
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const format = {
  text: (x) => x,
  layout: (x) => x,
  number: (x) => x.toLocaleString("en", { maximumFractionDigits: 3 }),
  percent: (x) => (100 * x).toFixed(1) + " %",
  seconds: (x) => (x === 0 ? "0" : scaled(x, SECONDS)),
  bytes: (x) => (x === 0 ? "0 B" : scaled(x, BYTES)),
};
// What texts are sorted by: numbers in them by their value. `localeCompare` takes seconds for the ops of a large module.
const sortKey = (x) => (typeof x === "number" ? x : String(x).toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0")));
const byKey = (a, b, down) => {
  if (a === null || b === null) return (a === null) - (b === null);
  return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
};
const numeric = (kind) => kind !== "text" && kind !== "layout";
const show = (kind, x) => (x === null || x === undefined ? "" : format[kind](x));
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const tip = make("div", { id: "tip", role: "status", hidden: "" });
function hint(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 8)) + "px";
  tip.style.top = (event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16) + "px";
}

// A table that creates only the rows in view.
function table(section) {
  const { columns, rows } = section;
  let query = "", sort = null, down = false, by = -1, lines = [];
  const open = new Set();
  const search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search " + section.title });
  const group = make("select", { "aria-label": "Group " + section.title }, make("option", { value: -1 }, "No groups"));
  columns.forEach((c, i) => { if (c.group) group.append(make("option", { value: i }, "Group by " + c.name)); });
  const count = make("span", { class: "count", "aria-live": "polite" });
  const heads = columns.map((c, i) => make("th", { class: numeric(c.kind) ? "n" : "", scope: "col" },
    make("button", { type: "button", onclick: () => { down = sort === i ? !down : numeric(c.kind); sort = i; update(); } }, c.name)));
  const body = make("tbody");
  const narrow = innerWidth < 600;
  const widths = columns.map((c) => (c.name === "#" ? 62 : numeric(c.kind) ? (narrow ? 92 : 105) : narrow ? 150 : 190));
  const grid = make("table", { style: `min-width:${widths.reduce((a, b) => a + b)}px` },
    make("colgroup", {}, ...widths.map((w) => make("col", { style: `width:${w}px` }))), make("thead", {}, make("tr", {}, ...heads)), body);
  const list = make("div", { class: "list", tabindex: "0", role: "region", "aria-label": section.title }, grid);

  function cell(c, x) {
    const td = make("td", { class: numeric(c.kind) ? "n" : "" });
    if (c.kind === "layout" && x) {
      for (const part of x) td.append(make("span", { class: "chip " + part[0] }, part));
    } else {
      td.textContent = show(c.kind, x);
      td.title = td.textContent;
    }
    return td;
  }
  function groupLine(line) {
    const summed = columns.findIndex((c) => c.sum), head = summed < 1 ? columns.length : summed;
    const text = `${open.has(line.key) ? "▾" : "▸"} ${line.key || "others"} (${format.number(line.rows.length)})`;
    const rest = columns.slice(head).map((c, i) => (c.sum ? cell(c, line.sums[head + i]) : make("td")));
    const cells = [make("td", { colspan: head, title: text }, text), ...rest];
    const toggle = () => { open.has(line.key) ? open.delete(line.key) : open.add(line.key); update(); };
    return make("tr", { class: "group", tabindex: "0", "aria-expanded": String(open.has(line.key)), onclick: toggle,
      onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); toggle(); } } }, ...cells);
  }
  function space(lines) {
    return make("tr", { class: "space", "aria-hidden": "true" }, make("td", { colspan: columns.length, style: `height:${lines * ROW}px` }));
  }
  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 10);
    const last = Math.min(lines.length, first + Math.ceil(list.clientHeight / ROW) + 20);
    const seen = lines.slice(first, last).map((line) => line.key === undefined
      ? make("tr", {}, ...columns.map((c, i) => cell(c, line[i]))) : groupLine(line));
    body.replaceChildren(space(first), ...seen, space(lines.length - last));
  }
  function update() {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = columns.map((c, i) => i).filter((i) => !numeric(columns[i].kind));
    const kept = words.length === 0 ? rows.slice() : rows.filter((row) => {
      const text = texts.map((i) => row[i]).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (sort !== null) {
      const keyed = kept.map((row) => [row[sort] === null ? null : sortKey(row[sort]), row]);
      lines = keyed.sort((a, b) => byKey(a[0], b[0], down)).map(([, row]) => row);
    } else {
      lines = kept;
    }
    if (by >= 0) {
      const groups = new Map();
      for (const row of lines) {
        const key = String(row[by] ?? "");
        if (!groups.has(key)) groups.set(key, { key, rows: [], sums: columns.map(() => null) });
        const own = groups.get(key);
        own.rows.push(row);
        columns.forEach((c, i) => { if (c.sum && row[i] !== null) own.sums[i] += row[i]; });
      }
      const all = [...groups.values()];
      if (sort !== null && columns[sort].sum) all.sort((a, b) => byKey(a.sums[sort], b.sums[sort], down));
      else all.sort((a, b) => b.rows.length - a.rows.length);
      lines = all.flatMap((g) => (open.has(g.key) ? [g, ...g.rows] : [g]));
    }
    heads.forEach((h, i) => {
      h.setAttribute("aria-sort", sort !== i ? "none" : down ? "descending" : "ascending");
      h.firstChild.textContent = columns[i].name + (sort !== i ? "" : down ? " ↓" : " ↑");
    });
    const left = section.left_out ? `, the first of ${format.number(rows.length + section.left_out)}` : "";
    count.textContent = (kept.length === rows.length ? "" : format.number(kept.length) + " of ") + format.number(rows.length) + " rows" + left;
    draw();
  }
  let timer;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { query = search.value; list.scrollTop = 0; update(); }, 120); });
  group.addEventListener("change", () => { by = Number(group.value); list.scrollTop = 0; update(); });
  list.addEventListener("scroll", () => requestAnimationFrame(draw));
  addEventListener("resize", draw);
  // Large tables begin with collapsed groups.
  const preferred = columns.findIndex((c) => c.group);
  if (rows.length > 500 && preferred >= 0) { by = preferred; group.value = String(by); }
  const bar = make("div", { class: "bar" });
  if (rows.length > 8) bar.append(search);
  if (preferred >= 0 && rows.length > 8) bar.append(group);
  bar.append(count);
  setTimeout(update);
  return [bar, list];
}

// A canvas that can be moved and zoomed. `view` has x, y and the scales of both axes.
function plane(height, options, paint, find) {
  const canvas = make("canvas", { style: `height:${height}px`, tabindex: "0", role: "img", "aria-label": options.label });
  const view = { x: 0, y: 0, sx: 1, sy: 1 };
  const context = canvas.getContext("2d");
  let queued = false;
  function redraw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      paint(context, view, width, height);
    });
  }
  function zoom(factor, px = canvas.clientWidth / 2, py = height / 2) {
    const old = { ...view };
    view.sx = Math.min(options.most, Math.max(options.least(), view.sx * factor));
    if (options.both) view.sy = view.sx;
    view.x += px / old.sx - px / view.sx;
    if (options.both) view.y += py / old.sy - py / view.sy;
    options.clamp?.(view, canvas.clientWidth);
    redraw();
  }
  function move(dx, dy) {
    view.x += dx / view.sx;
    view.y += dy / view.sy;
    options.clamp?.(view, canvas.clientWidth);
    redraw();
  }
  function fit() { options.fit(view, canvas.clientWidth, height); redraw(); }
  // The wheel zooms with Ctrl or after a click, so that the page scrolls past the canvas.
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && document.activeElement !== canvas) return;
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * 0.002), e.offsetX, e.offsetY);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => { drag = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    if (drag) { move(drag[0] - e.clientX, drag[1] - e.clientY); drag = [e.clientX, e.clientY]; hint(e, ""); return; }
    hint(e, find(e.offsetX, e.offsetY, view));
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { drag = null; });
  canvas.addEventListener("pointerleave", (e) => hint(e, ""));
  canvas.addEventListener("keydown", (e) => {
    const keys = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit, ArrowLeft: () => move(-60, 0),
      ArrowRight: () => move(60, 0), ArrowUp: () => move(0, -60), ArrowDown: () => move(0, 60) };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const button = (text, label, action) => make("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  const buttons = [button("+", "Zoom in", () => zoom(1.6)), button("−", "Zoom out", () => zoom(1 / 1.6)), button("Fit", "Show all", fit)];
  setTimeout(() => { (options.start || options.fit)(view, canvas.clientWidth, height); redraw(); });
  return { canvas, view, redraw, buttons };
}

function key(entries) {
  return make("div", { class: "key" }, ...entries.map(([name, variable]) =>
    make("span", {}, make("i", { style: `background:var(${variable})` }), name)));
}

function timeline(section) {
  const { tracks, names } = section;
  const row = 30, top = 24, height = top + row * tracks.length + 8;
  let end = 0;
  for (const t of tracks) for (const e of t.events) end = Math.max(end, e[1]);
  const left = () => (p.canvas.clientWidth < 600 ? 76 : 150);
  const options = {
    label: section.title + ": drag to move, + and - zoom, 0 shows all", most: 1e12,
    least: () => (p.canvas.clientWidth - left()) / end,
    clamp: (v, width) => { v.x = Math.max(0, Math.min(v.x, end - (width - left()) / v.sx)); v.y = 0; },
    fit: (v) => { v.x = 0; v.y = 0; v.sx = options.least(); },
  };
  function paint(g, v, width) {
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    const begin = left(), step = 10 ** Math.ceil(Math.log10(70 / v.sx)), fine = step / (70 / v.sx) > 4 ? step / 5 : step / (70 / v.sx) > 2 ? step / 2 : step;
    g.save();
    g.beginPath();
    g.rect(begin, 0, width - begin, height);
    g.clip();
    for (let t = Math.floor(v.x / fine) * fine; t < v.x + (width - begin) / v.sx; t += fine) {
      const x = begin + (t - v.x) * v.sx;
      g.fillStyle = colour("--line");
      g.fillRect(x, top - 4, 1, height);
      const time = format.seconds(Number(t.toPrecision(6)));
      g.fillStyle = colour("--dim");
      if (x + 3 + g.measureText(time).width <= width) g.fillText(time, x + 3, 11);
    }
    const colours = [colour("--work"), colour("--transfer"), colour("--wait")], text = colour("--panel"), mark = colour("--mark");
    tracks.forEach((track, i) => {
      const y = top + row * i;
      // Events of less than a pixel are drawn once a pixel.
      let drawn = -1;
      for (const [from, to, waited, kind, name] of track.events) {
        const a = begin + (from - v.x) * v.sx, b = begin + (to - v.x) * v.sx;
        if (b < begin || a > width || (b - drawn < 0.7)) continue;
        drawn = b;
        const w = a + waited * v.sx, hit = found && names[name].toLowerCase().includes(found);
        if (waited > 0) { g.fillStyle = colours[2]; g.fillRect(a, y + 3, w - a, row - 8); }
        g.fillStyle = hit ? mark : colours[kind];
        g.fillRect(w, y + 3, Math.max(b - w - (b - w > 3 ? 1 : 0), 0.7), row - 8);
        if (b - Math.max(w, begin) > 40) {
          g.save();
          g.beginPath();
          g.rect(Math.max(w, begin) + 3, y, b - Math.max(w, begin) - 8, row);
          g.clip();
          g.fillStyle = hit ? colour("--text") : text;
          g.fillText(names[name], Math.max(w, begin) + 5, y + row / 2);
          g.restore();
        }
      }
    });
    g.restore();
    g.fillStyle = colour("--text");
    tracks.forEach((track, i) => g.fillText(fitting(g, track.name, left() - 12), 6, top + row * i + row / 2));
  }
  // Text that is cut to a width.
  function fitting(g, text, width) {
    if (g.measureText(text).width <= width) return text;
    let n = text.length;
    while (n > 1 && g.measureText(text.slice(0, n) + "…").width > width) n--;
    return text.slice(0, n) + "…";
  }
  function find(x, y, v) {
    const track = tracks[Math.floor((y - top) / row)], t = v.x + (x - left()) / v.sx;
    if (track && x < left()) return track.name;
    if (!track) return "";
    const slack = 1 / v.sx;
    const e = track.events.find(([from, to]) => from - slack <= t && t <= to + slack);
    if (!e) return "";
    return `${names[e[4]]}\n${format.seconds(e[1] - e[0] - e[2])}, begins at ${format.seconds(e[0])}` + (e[2] > 0 ? `, waits ${format.seconds(e[2])}` : "");
  }
  let found = "";
  const p = plane(height, options, paint, find);
  const search = make("input", { type: "search", placeholder: "Highlight tasks", "aria-label": "Highlight tasks" });
  search.addEventListener("input", () => { found = search.value.trim().toLowerCase(); p.redraw(); });
  const left_out = section.left_out ? [make("p", {}, `${format.number(section.left_out)} more events or tracks are left out.`)] : [];
  return [key([["works", "--work"], ["transfers", "--transfer"], ["waits for another rank", "--wait"]]),
    make("div", { class: "bar" }, search, ...p.buttons), p.canvas, ...left_out];
}

// Ops in layers: an op is below everything that it reads.
function graph(section) {
  const { nodes, edges, kinds } = section, n = nodes.length, W = 170, H = 56;
  const level = new Int32Array(n), column = new Int32Array(n);
  for (const [from, to] of edges) level[to] = Math.max(level[to], level[from] + 1);
  const widths = [];
  for (let i = 0; i < n; i++) { column[i] = widths[level[i]] || 0; widths[level[i]] = column[i] + 1; }
  const wide = widths.reduce((a, b) => Math.max(a, b), 1), deep = widths.length;
  // Rows are centred.
  const px = (i) => (column[i] - (widths[level[i]] - 1) / 2) * W, py = (i) => level[i] * H;
  const layers = Array.from({ length: deep }, () => []);
  for (let i = 0; i < n; i++) layers[level[i]].push(i);
  const inputs = Array.from({ length: n }, () => []);
  for (const [from, to] of edges) inputs[to].push(from);
  const hues = new Map(kinds.map((k, i) => [i, (i * 137) % 360]));
  const options = {
    label: section.title + ": drag to move, + and - zoom, 0 shows all", both: true, most: 3, least: () => 0.0005,
    // Small graphs are shown whole; of others the beginning, where names can be read.
    start: (v, width, height) => {
      const whole = Math.min(width / (wide * W + 40), height / (deep * H + 40));
      if (whole >= 0.5) { options.fit(v, width, height); return; }
      v.sx = v.sy = Math.min(0.9, Math.max(0.55, width / (Math.min(wide, 6) * W + 40)));
      v.x = -width / 2 / v.sx;
      v.y = -H / 2;
    },
    fit: (v, width, height) => {
      v.sx = v.sy = Math.min(1, width / (wide * W + 40), height / (deep * H + 40));
      v.x = -width / 2 / v.sx;
      v.y = (deep * H - height / v.sy) / 2 - H / 2;
    },
  };
  let found = "", hits = [], at = -1;
  const range = (v, height) => [Math.max(0, Math.floor(v.y / H) - 1), Math.min(deep, Math.ceil((v.y + height / v.sy) / H) + 1)];
  function paint(g, v, width, height) {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches, [first, last] = range(v, height);
    const X = (x) => (x - v.x) * v.sx, Y = (y) => (y - v.y) * v.sy, bw = (W - 24) * v.sx, bh = 30 * v.sy;
    const inView = (i) => X(px(i)) > -bw && X(px(i)) < width + bw;
    // More layers than pixels are thinned out; so are the nodes of a layer.
    const skip = Math.max(1, Math.floor((last - first) / (2 * height)));
    let lines = 0;
    g.strokeStyle = colour("--dim");
    g.globalAlpha = 0.5;
    g.lineWidth = Math.max(0.4, Math.min(1.2, v.sx * 1.5));
    g.beginPath();
    for (let l = first; l < last; l += skip) for (const i of layers[l]) for (const j of inputs[i]) {
      if (lines > 20000 || (!inView(i) && !inView(j))) continue;
      lines++;
      const x = X(px(j)), y = Y(py(j)) + bh / 2, u = X(px(i)), w = Y(py(i)) - bh / 2;
      g.moveTo(x, y);
      // Edges past other layers go around them.
      const around = level[i] - level[j] > 1 ? Math.min(1.6, 0.7 + (level[i] - level[j]) / 20) * bw : 0;
      g.bezierCurveTo(x + around, y + (w - y) * 0.3, u + around, y + (w - y) * 0.7, u, w);
    }
    g.stroke();
    g.globalAlpha = 1;
    g.textBaseline = "middle";
    g.textAlign = "center";
    g.font = `${Math.min(13, 12 * v.sx)}px system-ui, sans-serif`;
    const text = colour("--text"), mark = colour("--mark"), accent = colour("--accent"), current = hits[at];
    for (let l = first; l < last; l += skip) for (const i of layers[l]) {
      if (!inView(i)) continue;
      const x = X(px(i)) - bw / 2, y = Y(py(i)) - bh / 2, hit = found && matches(i);
      g.fillStyle = hit ? mark : `hsl(${hues.get(nodes[i][1])} ${dark ? "32% 27%" : "55% 86%"})`;
      g.beginPath();
      g.roundRect(x, y, Math.max(bw, 0.8), Math.max(bh, 0.8), 5 * v.sx);
      g.fill();
      if (i === current) { g.strokeStyle = accent; g.lineWidth = 2; g.stroke(); }
      if (v.sx > 0.45) { g.fillStyle = text; g.fillText(label(i), x + bw / 2, y + bh / 2, bw - 6); }
    }
    g.textAlign = "start";
  }
  const label = (i) => kinds[nodes[i][1]];
  const matches = (i) => (nodes[i][0] + " " + label(i)).toLowerCase().includes(found);
  function find(x, y, v) {
    const gx = v.x + x / v.sx, gy = v.y + y / v.sy, l = Math.round(gy / H);
    if (!layers[l] || Math.abs(gy - l * H) > 18) return "";
    const i = layers[l][Math.round(gx / W + (widths[l] - 1) / 2)];
    return i === undefined ? "" : `${label(i)}\n${nodes[i][0]}` + (nodes[i][2] ? `\n${nodes[i][2]}` : "");
  }
  const p = plane(460, options, paint, find);
  const state = make("span", { class: "count", "aria-live": "polite" }, `${format.number(n)} ops`);
  function go(by) {
    if (hits.length === 0) return;
    at = (at + by + hits.length) % hits.length;
    const i = hits[at], v = p.view;
    v.sx = v.sy = Math.max(v.sx, 0.7);
    v.x = px(i) - p.canvas.clientWidth / 2 / v.sx;
    v.y = py(i) - 230 / v.sy;
    state.textContent = `${at + 1} of ${format.number(hits.length)} found`;
    p.redraw();
  }
  const search = make("input", { type: "search", placeholder: "Find an op or value", "aria-label": "Find an op or value" });
  search.addEventListener("input", () => {
    found = search.value.trim().toLowerCase();
    hits = [];
    at = -1;
    if (found) for (let i = 0; i < n; i++) if (matches(i)) hits.push(i);
    state.textContent = found ? `${format.number(hits.length)} found` : `${format.number(n)} ops`;
    if (hits.length) go(1); else p.redraw();
  });
  search.addEventListener("keydown", (e) => { if (e.key === "Enter") go(e.shiftKey ? -1 : 1); });
  const next = make("button", { type: "button", title: "Next match", "aria-label": "Next match", onclick: () => go(1) }, "Next");
  const left_out = section.left_out ? [make("p", {}, `The first ops: ${format.number(section.left_out)} more are left out.`)] : [];
  return [make("div", { class: "bar" }, search, next, ...p.buttons, state), p.canvas, ...left_out];
}

function memory(section) {
  const colours = ["--work", "--transfer", "--mark", "--dim"];
  const most = section.limit || Math.max(...section.rows.map((r) => r.parts.reduce((a, b) => a + b[1], 0)));
  const box = make("div", { class: "memory" });
  for (const r of section.rows) {
    const all = r.parts.reduce((a, b) => a + b[1], 0);
    const parts = r.parts.map(([, bytes], i) => make("div", { style: `width:${Math.max(0.3, 100 * bytes / most)}%;background:var(${colours[i % 4]})` }));
    const legend = key(r.parts.map(([what, bytes], i) => [`${what} ${format.bytes(bytes)}`, colours[i % 4]]));
    const sum = format.bytes(all) + (section.limit ? " of " + format.bytes(section.limit) : "");
    box.append(make("span", {}, r.name, make("small", {}, sum)), make("div", {}, make("div", { class: "track" }, ...parts), legend));
  }
  return [box];
}

const kinds = { table, timeline, graph, memory };
document.getElementById("title").textContent = data.title;
const facts = document.getElementById("facts"), main = document.getElementById("main"), nav = document.getElementById("nav");
for (const f of data.facts) {
  facts.append(make("div", { class: "fact" }, make("span", {}, f.name), make("b", {}, show(f.kind, f.value)), make("span", {}, f.note || "")));
}
// Sections are rendered one after another, so that the first is there at once.
function next(i) {
  const s = data.sections[i];
  if (!s) return;
  const id = "section-" + i;
  nav.append(make("a", { href: "#" + id }, s.title));
  const box = make("section", { id }, make("h2", {}, s.title));
  if (s.note) box.append(make("p", {}, s.note));
  main.append(box);
  box.append(...kinds[s.type](s));
  setTimeout(() => next(i + 1));
}
document.body.append(tip);
next(0);
