// Hover and arrow-key values for charts and grids, and sortable tables. The page is complete without it.
"use strict";
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const number = v => {
    if (v === null || v === undefined) return "–";
    const a = Math.abs(v);
    if (Number.isInteger(v) && a < 1e9) return v.toLocaleString("en");
    if (a >= 1e6 || a < 1e-3) return v.toPrecision(3);
    return v.toFixed(a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : 3);
  };
  const bytes = v => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let k = 0;
    while (Math.abs(v) >= 999.5 && k < 4) { v /= 1000; k++; }
    return (k ? Number(v.toPrecision(3)) : Math.round(v)) + " " + units[k];
  };
  const as = unit => unit === "bytes" ? bytes : unit === "s" ? v => number(v) + " s" : number;

  function showTip(x, y, title, rows) {
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = title;
    tip.append(head);
    for (const [name, value] of rows) {
      const line = document.createElement("div"), left = document.createElement("span"), right = document.createElement("b");
      left.textContent = name;
      right.textContent = value;
      line.append(left, right);
      tip.append(line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16) + "px";
    tip.style.top = Math.max(4, Math.min(y + 12, innerHeight - box.height - 4)) + "px";
  }

  function chart(plot, data) {
    const format = as(data.unit);
    const cursor = document.createElement("i");
    cursor.className = "cursor";
    const thin = [...plot.querySelectorAll("path.thin")];
    const bars = data.kind === "bars";
    const xs = bars ? data.x : [...new Set([...data.lines, ...data.thin].flatMap(l => l.x))].sort((a, b) => a - b);
    const [first, last, low, high] = bars ? [0, 0, 0, data.high] : data.range;
    const across = i => bars ? (i + .5) / xs.length : last > first ? (xs[i] - first) / (last - first) : .5;
    const valueAt = (line, i) => bars ? line.y[i] : line.y[line.x.indexOf(xs[i])];
    const latest = (line, i) => {          // a client's line may have been thinned: its last point up to here
      let k = line.x.length - 1;
      while (k > 0 && line.x[k] > xs[i]) k--;
      return line.y[k];
    };
    let at = -1;

    function clear() {
      plot.querySelectorAll(".cursor, .dot").forEach(e => e.remove());
      thin.forEach(p => p.classList.remove("hot"));
      tip.hidden = true;
      at = -1;
    }
    function dot(share, value, colour) {
      const e = document.createElement("i");
      e.className = "dot";
      e.style.cssText = `left:${share * 100}%;top:${(high - value) / (high - low) * 100}%;background:var(${colour})`;
      plot.append(e);
    }
    function show(i, pointer) {
      clear();
      at = i;
      const share = across(i), box = plot.getBoundingClientRect(), rows = [];
      cursor.style.left = share * 100 + "%";
      plot.append(cursor);
      data.lines.forEach((line, k) => {
        const v = valueAt(line, i);
        if (v === undefined) return;
        rows.push([line.n, v === null ? "not finite" : format(v)]);
        if (!bars && v !== null) dot(share, v, "--s" + k);
      });
      if (pointer && thin.length) {
        const y = high - (pointer.clientY - box.top) / box.height * (high - low);
        let best = -1, gap = Infinity;
        data.thin.forEach((line, k) => {
          const v = latest(line, i);
          if (v !== null && v !== undefined && Math.abs(v - y) < gap) { gap = Math.abs(v - y); best = k; }
        });
        if (best >= 0) {
          const v = latest(data.thin[best], i);
          rows.push([data.thin[best].n, format(v)]);
          thin[best].classList.add("hot");
          dot(share, v, "--s3");
        }
      }
      showTip(box.left + share * box.width, pointer ? pointer.clientY : box.top + 20, (bars && String(xs[i]).includes("–") ? "rounds " : "round ") + xs[i], rows);
    }
    plot.addEventListener("pointermove", event => {
      const box = plot.getBoundingClientRect(), share = (event.clientX - box.left) / box.width;
      let best = 0;
      if (bars) best = Math.min(xs.length - 1, Math.max(0, Math.floor(share * xs.length)));
      else xs.forEach((_, i) => { if (Math.abs(across(i) - share) < Math.abs(across(best) - share)) best = i; });
      show(best, event);
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(at < 0 ? (step > 0 ? 0 : xs.length - 1) : Math.min(xs.length - 1, Math.max(0, at + step)), null);
    });
  }

  function grid(plot, data) {
    plot.addEventListener("pointermove", event => {
      const box = plot.getBoundingClientRect();
      const pick = (share, n) => Math.min(n - 1, Math.max(0, Math.floor(share * n)));
      const r = pick((event.clientY - box.top) / box.height, data.rows.length);
      const c = pick((event.clientX - box.left) / box.width, data.columns.length);
      const cell = data.cells[r][c];
      showTip(event.clientX, event.clientY, data.rows[r], [[data.columns[c], data.words ? data.words[cell] : number(cell)]]);
    });
    plot.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  function plots(part) {
    for (const plot of part.querySelectorAll(".plot")) {
      const source = plot.parentElement.querySelector("script");
      if (!source) continue;
      plot.addEventListener("pointerenter", () => start(plot, source), { once: true });
      plot.addEventListener("focus", () => start(plot, source), { once: true });
    }
  }
  const started = new WeakSet();
  function start(plot, source) {          // parsed only when first looked at: long runs open quickly
    if (started.has(plot)) return;
    started.add(plot);
    const data = JSON.parse(source.textContent);
    (data.kind === "grid" ? grid : chart)(plot, data);
  }

  const compare = new Intl.Collator("en", { numeric: true }).compare;
  function tables(part) {
    for (const table of part.querySelectorAll("table.sortable")) sortable(table);
  }
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const numbers = [...body.rows].some(row => row.cells[column].classList.contains("num"));
        const now = head.getAttribute("aria-sort");
        const falling = now ? now === "ascending" : numbers;
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const key = row => row.cells[column].dataset.v ?? (numbers ? undefined : row.cells[column].textContent);
        const rows = [...body.rows].sort((a, b) => {
          const x = key(a), y = key(b);
          if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
          return (numbers ? x - y : compare(x, y)) * (falling ? -1 : 1);
        });
        body.append(...rows);
      });
    });
  }

  const wire = part => { plots(part); tables(part); };
  wire(document);
  document.addEventListener("fedreel:drawn", event => { tip.hidden = true; wire(event.target); });   // a part was drawn anew
})();
