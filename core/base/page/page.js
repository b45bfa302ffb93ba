// Draws the lines and heat maps of a page from the JSON in the page (format: page.h). A point that is
// selected by mouse, finger or arrow keys is shown in all panels whose axes have the same label.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const views = []; // {axis, draw(), mark(x or null)}

  const element = (tag, attributes = {}, ...children) => {
    const created = "svg path line circle text title g clipPath rect defs".split(" ").includes(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
    created.append(...children);
    return created;
  };
  const integer = n => n.toLocaleString("en-US");
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

  // The index in ascending `xs` whose value is nearest to `x`.
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
  };
  const ticks = (low, high, most) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(f => f * power >= rough * 0.999);
    const all = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) all.push(i * step || 0); // never -0
    return all;
  };
  // Ticks of a log scale from 10^low to 10^high: 1, 2 and 5 times the powers of ten; only the powers if those are too many;
  // steps of equal size if they are too few.
  const logTicks = (low, high, most) => {
    const inside = v => Math.log10(v) >= low && Math.log10(v) <= high, powers = [];
    for (let power = Math.floor(low); power <= high; ++power) powers.push(power);
    const times = factors => powers.flatMap(power => factors.map(f => Number(`${f}e${power}`))).filter(inside);
    if (times([1, 2, 5]).length < 3) return ticks(10 ** low, 10 ** high, most).filter(inside);
    if (times([1, 2, 5]).length <= most + 1) return times([1, 2, 5]);
    return times([1]).filter((_, i, all) => i % Math.ceil(all.length / most) === 0);
  };

  // Returns the range of most of the values, on a log scale as powers of ten. A few outliers may be outside of the panel (cut);
  // its caption has their peak. On an axis of names there are none.
  const range = (values, panel, log, mayCut) => {
    const scaled = log ? Math.log10 : v => v;
    const all = values.map(scaled).sort((a, b) => a - b), at = share => all[Math.round(share * (all.length - 1))];
    const zero = !log && (panel.kind === "bars" || panel.y?.from_zero), rule = panel.rule ? scaled(panel.rule.value) : NaN;
    let low = all[0], high = all[all.length - 1];
    if (mayCut && high - at(0.99) > 3 * (at(0.99) - at(0.01)) && at(0.99) > at(0.01)) high = at(0.99) + 0.25 * (at(0.99) - at(0.01));
    const cut = high < all[all.length - 1], positive = !log && low >= 0;
    if (Number.isFinite(rule) && rule < (log ? high + 0.4 : 2.5 * high)) { high = Math.max(high, rule); low = Math.min(low, rule); }
    if (zero) low = Math.min(0, low);
    if (low === high) { const room = log ? 0.02 : Math.abs(low) * 0.05 || 1; low -= zero && low === 0 ? 0 : room; high += room; }
    const room = 0.06 * (high - low);
    return {low: positive ? Math.max(0, low - room) : low - room, high: high + room, cut};
  };

  let selected = null; // {label, x}: a place of all panels whose axis has the label
  const select = (axis, x) => {
    selected = x === null ? null : {label: axis.label, x};
    for (const view of views) if (view.axis.label === axis.label) view.mark(x);
  };
  const selectedOn = axis => selected?.label === axis.label ? selected.x : null;
  const nameOf = (axis, x) => `${axis.label} ${axis.names ? axis.names[x] : integer(x)}`;
  // Handles pointer and keys. `placeAt(event)` returns the place below the pointer, `move(x, by)` the place `by` points after x.
  const listen = (axis, area, figure, placeAt, move) => {
    area.addEventListener("pointermove", event => select(axis, placeAt(event)));
    area.addEventListener("pointerdown", event => select(axis, placeAt(event)));
    area.addEventListener("pointerleave", () => select(axis, null));
    figure.addEventListener("blur", () => select(axis, null));
    figure.addEventListener("keydown", event => {
      const by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
      if (event.key === "Escape") select(axis, null);
      if (by === undefined) return;
      event.preventDefault();
      select(axis, move(selectedOn(axis), event.shiftKey ? by * 10 : by));
    });
  };
  const moved = (xs, x, by) => xs[clamp((x === null ? xs.length - 1 : nearest(xs, x)) + by, 0, xs.length - 1)];

  const axisOf = (panel, section) => panel.x ?? section.x ?? data.x;
  // Returns the first and the last place of an axis in any panel.
  const ends = axis => {
    if (axis.names) return [0, axis.names.length - 1];
    const all = data.sections.flatMap(s => s.panels.filter(p => p.series && axisOf(p, s).label === axis.label)).flatMap(p => p.series);
    const last = Math.max(1, ...all.map(series => series.x.at(-1)));
    return [Math.min(last, ...all.map(series => series.x[0])), last];
  };

  const figureOf = (panel, readout, ...buttons) => {
    const subtitle = element("span", {class: "unit"}, panel.subtitle || "\u00a0");
    return [element("figure", {class: "panel", tabindex: 0},
      element("figcaption", {}, element("b", {}, panel.title), ...buttons, readout, subtitle)), subtitle];
  };
  // Returns a toggle button. Calls `change(pressed)` after each click.
  const toggle = (text, title, pressed, change) => {
    const button = element("button", {type: "button", title, "aria-pressed": pressed}, text);
    button.addEventListener("click", () => {
      pressed = !pressed;
      button.setAttribute("aria-pressed", pressed);
      change(pressed);
    });
    return button;
  };

  const chart = (panel, axis, number) => {
    const [firstX, lastX] = ends(axis), all = panel.series.flatMap(series => series.y);
    const late = panel.start && panel.series[0].x.filter(x => x >= panel.start.x).length >= 2 && panel.start.x > firstX;
    let from = late ? panel.start.x : firstX, log = false, low, high, x, y, slot, marks;
    const readout = element("span", {class: "readout"}), buttons = [];
    if (panel.y?.log !== undefined && all.every(v => v > 0)) {
      log = panel.y.log;
      buttons.push(toggle("log", "log scale", log, pressed => { log = pressed; draw(); }));
    }
    if (late) buttons.push(toggle(panel.start.name, `show the ${panel.start.name} too`, false, pressed => {
      from = pressed ? firstX : panel.start.x;
      draw();
    }));
    const [figure, subtitle] = figureOf(panel, readout, ...buttons);
    if (panel.is_wide) figure.classList.add("wide");
    if (panel.series.length > 1) figure.classList.add("many");
    const svg = element("svg", {role: "img"});
    svg.setAttribute("aria-label", panel.series.map(series =>
      `${panel.title} ${series.name}: ${short(series.y[0])} at ${nameOf(axis, series.x[0])}, ` +
      `${short(series.y.at(-1))} at ${nameOf(axis, series.x.at(-1))}`).join("; "));
    figure.append(svg);
    const top = 6, colour = index => `var(--c${index % 6})`;
    const half = (series, i) => series.low ? (series.high[i] - series.low[i]) / 2 : 0;
    const valueText = (series, i) => short(series.y[i]) + (half(series, i) > 0 ? ` \u00b1 ${short(half(series, i))}` : "");

    const isBars = panel.kind === "bars", barWidth = () => Math.min(44, 0.6 * slot / panel.series.length);
    const shift = index => isBars ? (index - (panel.series.length - 1) / 2) * barWidth() : 0; // bars of one place are adjacent
    const points = (xs, ys) => xs.map((v, i) => `${x(v).toFixed(1)} ${y(ys[i]).toFixed(1)}`);
    const addInterval = (series, index, area) => {
      if (!axis.names) {
        const outline = [...points(series.x, series.high), ...points(series.x, series.low).reverse()];
        area.append(element("path", {class: "band", style: `fill: ${colour(index)}`, d: `M${outline.join("L")}Z`}));
      } else series.x.forEach((v, i) => half(series, i) > 0 && area.append(element("line",
        {class: "interval", style: isBars ? "stroke: var(--ink)" : `stroke: ${colour(index)}`, x1: x(v) + shift(index), x2: x(v) + shift(index), y1: y(series.low[i]), y2: y(series.high[i])})));
    };
    const titleOf = (series, i) => element("title", {}, `${nameOf(axis, series.x[i])} ${series.name}: ${valueText(series, i)}`);
    const addBars = (series, index, area) => {
      series.x.forEach((v, i) => area.append(element("rect", {style: `fill: ${colour(index)}`, x: x(v) + shift(index) - 0.47 * barWidth(),
        width: 0.94 * barWidth(), y: Math.min(y(0), y(series.y[i])), height: Math.abs(y(0) - y(series.y[i]))}, titleOf(series, i))));
      if (series.low) addInterval(series, index, area);
    };
    const addSeries = (series, index, area) => {
      if (isBars) return addBars(series, index, area);
      const add = (kind, line) => area.append(
        element("path", {class: kind, style: `stroke: ${colour(index)}`, d: `M${points(line.x, line.y).join("L")}`}));
      if (series.low) addInterval(series, index, area);
      add(series.smooth ? "raw" : "line", series);
      // A downsampled curve is drawn as a band: each bucket is a stroke from its smallest to its largest value.
      if (series.smooth && series.x.length > 400) area.lastChild.style.strokeWidth = clamp(2 * (x(lastX) - x(from)) / series.x.length, 1, 3);
      if (series.smooth) add("line", series.smooth);
      if ((series.is_marked && series.x.length <= 80) || series.x.length === 1) series.x.forEach((v, i) => area.append(
        element("circle", {r: 2.6, cx: x(v), cy: y(series.y[i]), style: `fill: ${colour(index)}`},
          titleOf(series, i))));
    };
    const caption = cut => {
      const shown = panel.series.flatMap(series => series.y.filter((_, i) => series.x[i] >= from));
      return [panel.subtitle, panel.rule && `${panel.rule.name} at ${short(panel.rule.value)}`,
        from > firstX && `from ${nameOf(axis, from)} on`, log && "log scale",
        cut && `peak ${short(Math.max(...shown))} beyond the edge`].filter(Boolean).join(", ") || "\u00a0";
    };
    const widestName = 6.6 * Math.max(...(axis.names ?? []).map(name => name.length));
    const drawNames = (left, width, height) => { // wide names alternate between two rows; names that still overlap are omitted
      const isTight = widestName > slot, every = Math.ceil(widestName / slot / (isTight ? 2 : 1));
      axis.names.forEach((name, i) => i % every === 0 && svg.append(element("text", {"text-anchor": "middle",
        x: clamp(x(i), left + 3.2 * name.length, width - 3.2 * name.length), y: height - (isTight && i / every % 2 === 0 ? 17 : 4)}, name)));
    };
    const draw = () => {
      const shown = panel.series.flatMap(series => [series.y, series.low ?? [], series.high ?? []].flatMap(
        ys => ys.filter((v, i) => series.x[i] >= from && (v > 0 || !log))));
      let cut;
      ({low, high, cut} = range(shown, panel, log, !axis.names));
      subtitle.replaceChildren(caption(cut));
      const width = Math.max(120, svg.clientWidth), height = panel.is_wide ? clamp(width * 0.34, 220, 380) : 168;
      const most = panel.is_wide ? 6 : 5;
      const yTicks = log ? logTicks(low, high, most) : ticks(low, high, most).filter(v => v >= low && v <= high);
      const yLabels = log ? yTicks.flatMap(v => labels([v])) : labels(yTicks), left = 12 + 6.3 * Math.max(...yLabels.map(label => label.length));
      slot = (width - left) / axis.names?.length;
      const inset = isBars ? slot / 2 : axis.names ? 12 : 0, bottom = axis.names && widestName > slot ? 33 : 20;
      x = v => lastX === from ? (left + width) / 2 : left + inset + (v - from) / (lastX - from) * (width - left - (isBars ? 0 : 8) - 2 * inset);
      y = v => top + (high - (log ? Math.log10(Math.max(v, 1e-300)) : v)) / (high - low) * (height - top - bottom);
      svg.replaceChildren(element("defs", {}, element("clipPath", {id: `clip${number}`},
        element("rect", {x: left - 3, y: 0, width: width - left + 3, height: height - bottom + 3}))));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("height", height);
      yTicks.forEach((v, i) => svg.append(
        element("line", {class: "grid", x1: left, x2: width, y1: y(v), y2: y(v)}),
        element("text", {x: left - 7, y: y(v) + 4, "text-anchor": "end"}, yLabels[i])));
      const xTicks = axis.names ? [] : lastX === from ? [lastX] : ticks(from, lastX, width / 90).filter(Number.isInteger);
      for (const v of xTicks) svg.append(element("text",
        {x: clamp(x(v), left + 3 * integer(v).length, width - 3.2 * integer(v).length), y: height - 4, "text-anchor": "middle"}, integer(v)));
      if (axis.names) drawNames(left, width, height);
      svg.append(element("line", {class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom}));
      const area = element("g", {"clip-path": `url(#clip${number})`});
      if (panel.rule) area.append(element("line", {class: "rule", x1: left, x2: width, y1: y(panel.rule.value), y2: y(panel.rule.value)}));
      panel.series.forEach((series, index) => addSeries(series, index, area));
      marks = element("g", {"clip-path": `url(#clip${number})`});
      svg.append(area, marks);
      mark(selectedOn(axis));
    };
    const mark = place => {
      marks.replaceChildren();
      readout.replaceChildren();
      if (place !== null) {
        const x0 = panel.series[0].x[nearest(panel.series[0].x, place)];
        marks.append(element("line", {class: "cursor", x1: x(x0), x2: x(x0), y1: 0, y2: 2000}));
        readout.append(element("span", {class: "at"}, nameOf(axis, x0)));
      }
      panel.series.forEach((series, index) => {
        const at = place === null ? series.x.length - 1 : nearest(series.x, place);
        if (place !== null) marks.append(
          element("circle", {r: 3.4, cx: x(series.x[at]) + shift(index), cy: y(series.y[at]), style: `fill: ${colour(index)}`}));
        const item = element("span", {});
        if (series.name) item.append(element("i", {style: `background: ${colour(index)}`}), `${series.name} `);
        if (place !== null || !axis.names) item.append(valueText(series, at)); // a curve's last value; names have no last one
        readout.append(item);
      });
    };
    listen(axis, svg, figure, event => {
      const box = svg.getBoundingClientRect(), left = x(from), right = x(lastX);
      return Math.round(from + clamp((event.clientX - box.left - left) / (right - left || 1), 0, 1) * (lastX - from));
    }, (place, by) => moved(panel.series[0].x, place, by));
    views.push({axis, draw, mark});
    return figure;
  };

  // Colour of a share, by its binary logarithm: a quarter of an equal share or less, equal, four times.
  const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches;
  const colourOf = (share, dark) => {
    const [cold, equal, warm] = dark ? [[86, 148, 222], [38, 41, 45], [242, 158, 84]] : [[34, 88, 158], [243, 241, 236], [186, 82, 10]];
    const place = share > 0 ? clamp(Math.log2(share) / 2, -1, 1) : -1, strength = Math.abs(place) ** 0.7;
    return equal.map((from, i) => from + ((place < 0 ? cold : warm)[i] - from) * strength);
  };
  const paint = (canvas, width, height, shareAt) => {
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height), dark = isDark();
    for (let row = 0; row < height; ++row) for (let column = 0; column < width; ++column)
      image.data.set([...colourOf(shareAt(column, row), dark), 255], 4 * (row * width + column));
    context.putImageData(image, 0, 0);
  };

  const heatMap = (panel, axis) => {
    const rows = panel.y.names, columns = axis.names ? axis.names.map((_, i) => i) : axis.ranges.map(range => range[1]);
    const count = columns.length, shareAt = (column, row) => panel.values[column * rows.length + row] / 100;
    const columnName = column => axis.names || axis.ranges[column][0] === axis.ranges[column][1] ? nameOf(axis, columns[column])
      : `${axis.label} ${axis.ranges[column].map(integer).join("-")}`;
    const readout = element("span", {class: "readout"});
    const [figure] = figureOf(panel, readout);
    const canvas = element("canvas", {role: "img", "aria-label":
      `${panel.title}: share of each of ${rows.length} ${panel.y.label}s by ${axis.label}, over an equal share`});
    const rowHeight = clamp(Math.round(132 / rows.length), 2, 22), height = rows.length * rowHeight;
    canvas.style.height = `${height}px`;
    const cursor = element("div", {class: "mark", hidden: ""}), box = element("div", {class: "mapbox"}, canvas, cursor);
    const left = `${Math.max(26, 8 + 6.3 * Math.max(...rows.map(name => name.length)))}px`;
    box.style.marginLeft = left;
    rows.forEach((name, row) => (rowHeight >= 14 || row === 0 || row === rows.length - 1) && box.append(element("span",
      {class: "row", style: `top: ${clamp((row + 0.5) * rowHeight - 5, 0, height - 11)}px`}, name)));
    const below = element("div", {class: axis.names ? "mapsteps even" : "mapsteps"}, ...(axis.names ?? [
      `${axis.label} ${integer(axis.ranges[0][0])}`, count > 1 ? integer(columns[count - 1]) : ""]).map(name => element("span", {}, name)));
    below.style.marginLeft = left;
    figure.append(box, below);
    let row = null;
    const columnOf = place => { const i = columns.findIndex(end => end >= place); return i < 0 ? count - 1 : i; };
    const mark = place => {
      cursor.hidden = place === null;
      const column = place === null ? count - 1 : columnOf(place);
      cursor.style.left = `${(column + 0.5) / count * 100}%`;
      const shares = rows.map((_, i) => shareAt(column, i));
      const shown = row === null || place === null ? shares.indexOf(Math.max(...shares)) : row;
      readout.replaceChildren(element("span", {class: "at"}, place !== null || axis.names ? columnName(column) : "busiest at the end"),
        element("span", {}, `${panel.y.label} ${rows[shown]}: ${shares[shown].toFixed(2)}\u00d7`));
    };
    listen(axis, box, figure, event => {
      const area = canvas.getBoundingClientRect();
      row = clamp(Math.floor((event.clientY - area.top) / area.height * rows.length), 0, rows.length - 1);
      return columns[clamp(Math.floor((event.clientX - area.left) / area.width * count), 0, count - 1)];
    }, (place, by) => moved(columns, place, by));
    box.addEventListener("pointerleave", () => { row = null; });
    figure.addEventListener("keydown", event => {
      const by = {ArrowUp: -1, ArrowDown: 1}[event.key];
      if (by === undefined) return;
      event.preventDefault();
      row = clamp((row ?? 0) + by, 0, rows.length - 1);
      select(axis, selectedOn(axis) ?? columns[count - 1]);
    });
    views.push({axis, draw: () => { paint(canvas, count, rows.length, shareAt); mark(selectedOn(axis)); }, mark});
    return figure;
  };

  // The note of a section, and the colours of its heat maps.
  const noteOf = section => {
    const note = element("p", {class: "key"}, section.note);
    if (section.panels[0].kind === "heat map") {
      const key = element("canvas", {role: "img", "aria-label": "from nothing to four times an equal share"});
      views.push({axis: {}, draw: () => paint(key, 81, 1, column => 2 ** ((column - 40) / 20)), mark: () => {}});
      note.append(": \u00bc or less", key, "4\u00d7 or more");
    }
    return note;
  };
  let number = 0;
  document.querySelectorAll("section.drawn").forEach((place, index) => {
    const section = data.sections[index];
    if (section.title) place.append(element("h2", {}, section.title));
    if (section.note) place.append(noteOf(section));
    place.append(element("div", {class: "panels"}, ...section.panels.map(panel =>
      (panel.kind === "heat map" ? heatMap : chart)(panel, axisOf(panel, section), number++))));
  });

  const drawAll = () => views.forEach(view => view.draw());
  drawAll();
  let drawn = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawn) { drawn = innerWidth; drawAll(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", drawAll);
  addEventListener("afterprint", drawAll);
})();
