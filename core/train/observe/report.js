// Draws the curves and load maps of a report from the JSON beside it. Pointing at a step in one of
// them, by mouse, finger or arrow keys, shows that step in all.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const views = []; // {draw(), mark(step or null)}

  const element = (tag, attributes = {}, ...children) => {
    const made = "svg path line circle text g clipPath rect defs".split(" ").includes(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const whole = n => n.toLocaleString("en-US");
  const short = v => {
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return v.toExponential(2).replace("e+", "e");
    return v.toLocaleString("en-US", {maximumFractionDigits: size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 4});
  };
  // Labels of an axis, all in one form.
  const labels = values => {
    const size = Math.max(...values.map(Math.abs));
    return values.map(v => v !== 0 && (size < 5e-3 || size >= 1e7)
      ? Number(v.toPrecision(5)).toExponential().replace("e+", "e") : v.toLocaleString("en-US", {maximumFractionDigits: 5}));
  };
  const clamp = (v, low, high) => Math.min(high, Math.max(low, v));

  // The place in ascending `steps` that is nearest to `step`.
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
  };
  const ticks = (low, high, most) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(f => f * power >= rough * 0.999);
    const all = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) all.push(i * step || 0); // never -0
    return all;
  };

  // What most of the values need: a few far ones may leave the panel, its caption tells their peak.
  const range = panel => {
    const all = panel.lines.flatMap(line => line.values).sort((a, b) => a - b);
    const at = share => all[Math.round(share * (all.length - 1))];
    let low = all[0], high = all[all.length - 1];
    if (high - at(0.99) > 3 * (at(0.99) - at(0.01)) && at(0.99) > at(0.01)) high = at(0.99) + 0.25 * (at(0.99) - at(0.01));
    const cut = high < all[all.length - 1];
    if (panel.rule && panel.rule.value < 2.5 * high) { high = Math.max(high, panel.rule.value); low = Math.min(low, panel.rule.value); }
    if (panel.zero) low = Math.min(0, low);
    if (low === high) { const room = Math.abs(low) * 0.05 || 1; low -= panel.zero && low === 0 ? 0 : room; high += room; }
    const room = 0.06 * (high - low);
    return {low: panel.zero && low === 0 ? 0 : low - room, high: high + room, cut};
  };

  let selected = null;
  const select = step => {
    selected = step;
    for (const view of views) view.mark(step);
  };
  // Pointer and keys: `stepAt(event)` where the pointer is, `move(step, by)` a few points on.
  const listen = (area, figure, stepAt, move) => {
    area.addEventListener("pointermove", event => select(stepAt(event)));
    area.addEventListener("pointerdown", event => select(stepAt(event)));
    area.addEventListener("pointerleave", () => select(null));
    figure.addEventListener("blur", () => select(null));
    figure.addEventListener("keydown", event => {
      const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
      if (event.key === "Escape") select(null);
      if (by === undefined) return;
      event.preventDefault();
      select(move(selected, event.shiftKey ? by * 10 : by));
    });
  };
  const moved = (steps, step, by) =>
    steps[clamp((step === null ? steps.length - 1 : nearest(steps, step)) + by, 0, steps.length - 1)];

  const lastStep = Math.max(1, ...data.panels.flatMap(p => p.lines.map(l => l.steps[l.steps.length - 1])));
  const firstStep = Math.min(lastStep, ...data.panels.flatMap(p => p.lines.map(l => l.steps[0])));

  const figureOf = (title, unit, readout) => element("figure", {class: "panel", tabindex: 0},
    element("figcaption", {}, element("b", {}, title), readout, element("span", {class: "unit"}, unit)));

  const chart = (panel, number) => {
    const {low, high, cut} = range(panel);
    const peak = Math.max(...panel.lines.flatMap(line => line.values));
    const rule = panel.rule ? `, ${panel.rule.name} at ${short(panel.rule.value)}` : "";
    const unit = panel.unit + rule + (cut ? `, peak ${short(peak)} beyond the edge` : "");
    const readout = element("span", {class: "readout"});
    const figure = figureOf(panel.title, unit.replace(/^, /, "") || "\u00a0", readout);
    const wide = panel.group === "Loss";
    if (wide) figure.classList.add("wide");
    if (panel.lines.length > 1) figure.classList.add("many");
    const svg = element("svg", {role: "img"});
    svg.setAttribute("aria-label", panel.lines.map(line =>
      `${panel.title} ${line.name}: ${short(line.values[0])} at step ${line.steps[0]}, ` +
      `${short(line.values.at(-1))} at step ${line.steps.at(-1)}`).join("; "));
    figure.append(svg);
    const top = 6, bottom = 20;
    let x, y, marks;

    const path = (steps, values) => steps.map((s, i) => `${i ? "L" : "M"}${x(s).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("");
    const addLine = (line, index, area) => {
      const stroke = `stroke: var(--c${index % 6})`;
      const add = (kind, from) => area.append(element("path", {class: kind, style: stroke, d: path(from.steps, from.values)}));
      add(line.smooth ? "raw" : "line", line);
      // Of a thinned curve every bucket is a stroke from its least to its largest value: a band.
      if (line.smooth && line.steps.length > 400) area.lastChild.style.strokeWidth = clamp(2 * (x(lastStep) - x(firstStep)) / line.steps.length, 1, 3);
      if (line.smooth) add("line", line.smooth);
      const sparse = index > 0 || panel.title === "Accuracy" || line.steps.length === 1;
      if (sparse && line.steps.length <= 80) line.steps.forEach((s, i) => area.append(
        element("circle", {r: 2.6, cx: x(s), cy: y(line.values[i]), style: `fill: var(--c${index % 6})`})));
    };
    const draw = () => {
      const width = Math.max(120, svg.clientWidth), height = wide ? clamp(width * 0.34, 220, 380) : 168;
      const yTicks = ticks(low, high, wide ? 6 : 5).filter(v => v >= low && v <= high);
      const yLabels = labels(yTicks), left = 12 + 6.3 * Math.max(...yLabels.map(label => label.length));
      x = s => lastStep === firstStep ? (left + width) / 2 : left + (s - firstStep) / (lastStep - firstStep) * (width - left - 8);
      y = v => top + (high - v) / (high - low) * (height - top - bottom);
      svg.replaceChildren(element("defs", {}, element("clipPath", {id: `clip${number}`},
        element("rect", {x: left - 3, y: 0, width: width - left + 3, height: height - bottom + 3}))));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
      yTicks.forEach((v, i) => svg.append(
        element("line", {class: "grid", x1: left, x2: width, y1: y(v), y2: y(v)}),
        element("text", {x: left - 7, y: y(v) + 4, "text-anchor": "end"}, yLabels[i])));
      const xTicks = lastStep === firstStep ? [lastStep] : ticks(firstStep, lastStep, width / 90).filter(Number.isInteger);
      for (const s of xTicks) svg.append(element("text",
        {x: clamp(x(s), left + 3 * whole(s).length, width - 3.2 * whole(s).length), y: height - 4, "text-anchor": "middle"}, whole(s)));
      svg.append(element("line", {class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom}));
      const area = element("g", {"clip-path": `url(#clip${number})`});
      if (panel.rule) area.append(element("line", {class: "clip", x1: left, x2: width, y1: y(panel.rule.value), y2: y(panel.rule.value)}));
      panel.lines.forEach((line, index) => addLine(line, index, area));
      marks = element("g", {"clip-path": `url(#clip${number})`});
      svg.append(area, marks);
      mark(selected);
    };
    const mark = step => {
      marks.replaceChildren();
      if (step !== null) {
        const here = panel.lines[0].steps[nearest(panel.lines[0].steps, step)];
        marks.append(element("line", {class: "cursor", x1: x(here), x2: x(here), y1: 0, y2: 2000}));
        readout.replaceChildren(element("span", {class: "at"}, `step ${whole(here)}`));
      } else {
        readout.replaceChildren();
      }
      panel.lines.forEach((line, index) => {
        const at = step === null ? line.steps.length - 1 : nearest(line.steps, step);
        const colour = `var(--c${index % 6})`;
        if (step !== null) marks.append(
          element("circle", {r: 3.4, cx: x(line.steps[at]), cy: y(line.values[at]), style: `fill: ${colour}`}));
        const item = element("span", {});
        if (line.name) item.append(element("i", {style: `background: ${colour}`}), `${line.name} `);
        item.append(short(line.values[at]));
        readout.append(item);
      });
    };
    listen(svg, figure, event => {
      const box = svg.getBoundingClientRect(), left = x(firstStep), right = x(lastStep);
      return Math.round(firstStep + clamp((event.clientX - box.left - left) / (right - left || 1), 0, 1) * (lastStep - firstStep));
    }, (step, by) => moved(panel.lines[0].steps, step, by));
    views.push({draw, mark});
    return figure;
  };

  // Colour of a load, by its binary logarithm: a quarter of an equal share or less, equal, four times.
  const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
  const colourOf = (load, dark) => {
    const [cold, equal, warm] = dark ? [[86, 148, 222], [38, 41, 45], [242, 158, 84]] : [[34, 88, 158], [243, 241, 236], [186, 82, 10]];
    const place = load > 0 ? clamp(Math.log2(load) / 2, -1, 1) : -1, strength = Math.abs(place) ** 0.7;
    return equal.map((from, i) => from + ((place < 0 ? cold : warm)[i] - from) * strength);
  };
  const paint = (canvas, width, height, loadAt) => {
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height), dark = isDark();
    for (let row = 0; row < height; ++row) for (let column = 0; column < width; ++column)
      image.data.set([...colourOf(loadAt(column, row), dark), 255], 4 * (row * width + column));
    context.putImageData(image, 0, 0);
  };

  const map = one => {
    const {columns} = data, ends = columns.map(c => c[1]), count = columns.length;
    const loadAt = (column, expert) => one.loads[column * one.experts + expert] / 100;
    const readout = element("span", {class: "readout"});
    const figure = figureOf(`Layer ${one.layer}`, `${one.experts} experts, one a row`, readout);
    const canvas = element("canvas", {role: "img", "aria-label": `Load of ${one.experts} experts of layer ${one.layer} over time`});
    const height = one.experts * clamp(Math.round(132 / one.experts), 2, 22);
    canvas.style.height = `${height}px`;
    const cursor = element("div", {class: "mark", hidden: ""});
    const box = element("div", {class: "mapbox"}, canvas, cursor);
    for (const expert of one.experts > 1 ? [0, one.experts - 1] : [0]) box.append(element("span",
      {class: "row", style: `top: ${clamp((expert + 0.5) / one.experts * height - 5, 0, height - 11)}px`}, `${expert}`));
    figure.append(box, element("div", {class: "mapsteps"},
      element("span", {}, `step ${whole(columns[0][0])}`), element("span", {}, count > 1 ? whole(ends[count - 1]) : "")));
    let expert = null;
    const columnOf = step => { const i = ends.findIndex(end => end >= step); return i < 0 ? count - 1 : i; };
    const mark = step => {
      cursor.hidden = step === null;
      const column = step === null ? count - 1 : columnOf(step);
      cursor.style.left = `${(column + 0.5) / count * 100}%`;
      const [from, to] = columns[column], steps = from === to ? whole(from) : `${whole(from)}-${whole(to)}`;
      const loads = Array.from({length: one.experts}, (_, e) => loadAt(column, e));
      const shown = expert === null || step === null ? loads.indexOf(Math.max(...loads)) : expert;
      readout.replaceChildren(element("span", {class: "at"}, step === null ? "busiest at the end" : `step ${steps}`),
        element("span", {}, `expert ${shown}: ${loads[shown].toFixed(2)}\u00d7`));
    };
    listen(box, figure, event => {
      const area = canvas.getBoundingClientRect();
      expert = clamp(Math.floor((event.clientY - area.top) / area.height * one.experts), 0, one.experts - 1);
      return ends[clamp(Math.floor((event.clientX - area.left) / area.width * count), 0, count - 1)];
    }, (step, by) => moved(ends, step, by));
    box.addEventListener("pointerleave", () => { expert = null; });
    figure.addEventListener("keydown", event => {
      const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
      if (by === undefined) return;
      event.preventDefault();
      expert = clamp((expert ?? 0) + by, 0, one.experts - 1);
      select(selected ?? ends[count - 1]);
    });
    views.push({draw: () => { paint(canvas, count, one.experts, loadAt); mark(selected); }, mark});
    return figure;
  };

  const section = (title, figures, before = []) => figures.length === 0 ? [] : [element("section", {},
    ...(title === "Loss" ? [] : [element("h2", {}, title)]), ...before, element("div", {class: "panels"}, ...figures))];
  const groups = [...new Set(data.panels.map(panel => panel.group))];
  let number = 0;
  const key = element("canvas", {role: "img", "aria-label": "from no token to four times an equal share"});
  views.push({draw: () => paint(key, 81, 1, column => 2 ** ((column - 40) / 20)), mark: () => {}});
  document.getElementById("charts").append(
    ...groups.flatMap(group => section(group, data.panels.filter(p => p.group === group).map(p => chart(p, number++)))),
    ...section("Load by layer and expert", data.maps.map(map),
      [element("p", {class: "key"}, "Rows of an expert over an equal share: \u00bc or less", key, "4\u00d7 or more")]));

  const drawAll = () => views.forEach(view => view.draw());
  drawAll();
  let drawn = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; drawAll(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", drawAll);
  addEventListener("afterprint", drawAll);
})();
