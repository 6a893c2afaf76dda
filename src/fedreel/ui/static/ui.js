// Live parts by server-sent events, uploads with progress, and players whose moments can be clicked.
"use strict";
(() => {
  // Markup from the server has its styles in data-style: the pages' policy allows none in the markup itself.
  const dress = part => {
    for (const e of part.querySelectorAll("[data-style]")) { e.style.cssText = e.dataset.style; e.removeAttribute("data-style"); }
  };
  const drawn = part => { dress(part); part.dispatchEvent(new CustomEvent("fedreel:drawn", { bubbles: true })); };
  dress(document);

  // A part that somebody is in with the keyboard is drawn anew when they leave it.
  const waiting = new Map();
  const put = (part, html) => {
    if (part.contains(document.activeElement)) { waiting.set(part, html); return; }
    waiting.delete(part);
    const open = [...part.querySelectorAll("details")].map(d => d.open);
    const scrolled = [...part.querySelectorAll(".scroll, .window")].map(e => [e.scrollTop, e.scrollLeft]);
    part.innerHTML = html;
    [...part.querySelectorAll("details")].forEach((d, i) => { if (open[i] !== undefined) d.open = open[i]; });
    drawn(part);
    [...part.querySelectorAll(".scroll, .window")].forEach((e, i) => { if (scrolled[i]) [e.scrollTop, e.scrollLeft] = scrolled[i]; });
  };
  document.addEventListener("focusout", () => setTimeout(() => { for (const [part, html] of [...waiting]) put(part, html); }, 0));

  const rowOf = (body, name) => [...body.rows].find(r => r.cells[0].dataset.run === name);
  function rows(table, changed, gone) {
    const body = table.tBodies[0];
    for (const name of gone) rowOf(body, name)?.remove();
    for (const [name, html] of Object.entries(changed)) {
      const holder = document.createElement("tbody");
      holder.innerHTML = html;
      const fresh = holder.rows[0], old = rowOf(body, name);
      dress(fresh);
      if (!old) { body.prepend(fresh); continue; }
      // the cell with the tick stays as it is, and so does one that has the focus
      for (let k = 1; k < fresh.cells.length; k++) {
        if (!old.cells[k].contains(document.activeElement)) { old.cells[k].replaceWith(fresh.cells[k].cloneNode(true)); }
      }
    }
    const none = document.querySelector("[data-none]");
    if (none) none.hidden = body.rows.length > 0;
  }

  const gone = document.createElement("p");
  gone.setAttribute("role", "alert");
  gone.className = "problems gone";
  gone.hidden = true;
  gone.textContent = "No more news: the server has ended, or was started again. Open the link that it printed.";
  document.querySelector("main")?.prepend(gone);

  for (const live of document.querySelectorAll("[data-events]")) {
    let source = null, failed = 0;
    const close = () => { source?.close(); source = null; };
    const open = () => {
      close();
      source = new EventSource(live.dataset.events);
      source.onopen = () => { failed = 0; gone.hidden = true; };
      source.onerror = () => { gone.hidden = ++failed < 2 && source?.readyState !== EventSource.CLOSED; };
      source.onmessage = heard;
    };
    const heard = event => {
      const told = JSON.parse(event.data);
      for (const [name, html] of Object.entries(told.parts ?? {})) {
        const part = live.querySelector(`[data-part="${name}"]`);
        if (part && part.dataset.html !== html) { part.dataset.html = html ?? ""; put(part, html ?? ""); }
      }
      if (told.rows || told.gone) rows(live.querySelector("table"), told.rows ?? {}, told.gone ?? []);
      if (told.state && live.dataset.state && told.state !== live.dataset.state) location.reload();
    };
    open();
    // a tab that nobody sees asks for nothing
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else if (!source) open(); });
    addEventListener("pagehide", close);
    addEventListener("pageshow", () => { if (!source) open(); });
  }

  // A choice that changes which fields there are loads the page with them.
  for (const select of document.querySelectorAll("select[data-reload]")) {
    select.addEventListener("change", () => select.form.requestSubmit(select.form.querySelector("button[data-show]")));
  }

  // The player shows the video that is chosen, if a browser can play it.
  for (const player of document.querySelectorAll("video[data-of]")) {
    const select = document.getElementById(player.dataset.of), played = player.dataset.played.split(" ");
    select.addEventListener("change", () => {
      player.hidden = !played.some(end => select.value.toLowerCase().endsWith(end));
      if (player.hidden) player.removeAttribute("src"); else player.src = "/files/" + select.value.split("/").map(encodeURIComponent).join("/");
    });
  }

  // The key Enter in one of several parts of a form means the button of this part.
  document.addEventListener("keydown", event => {
    const part = event.target.closest?.("[data-own-enter]");
    if (event.key !== "Enter" || !part || event.target.tagName !== "INPUT") return;
    event.preventDefault();
    event.target.form.requestSubmit(part.querySelector("button[type=submit]"));
  });

  // A file that is dropped or chosen is sent at once; then it is in the list of videos.
  for (const drop of document.querySelectorAll(".drop")) {
    const input = drop.querySelector("input[type=file]"), bar = drop.querySelector("progress"), said = drop.querySelector("[role=status]");
    const send = file => {
      const most = Number(drop.dataset.most);
      if (file.size > most) { said.textContent = `The file is too large: it has ${(file.size / 1e9).toPrecision(3)} GB, and ${(most / 1e9).toPrecision(3)} GB are taken.`; return; }
      const request = new XMLHttpRequest();
      request.open("POST", drop.dataset.to + "&name=" + encodeURIComponent(file.name));
      request.upload.onprogress = e => { bar.hidden = false; bar.max = e.total || 1; bar.value = e.loaded; };
      request.onload = () => {
        if (request.status === 200) { const to = new URL(location.href); to.searchParams.set("source", JSON.parse(request.responseText).source); location.assign(to); }
        else { bar.hidden = true; said.textContent = request.responseText; }
      };
      request.onerror = () => { bar.hidden = true; said.textContent = "The file was not taken: it is too large, or the server has gone."; };
      said.textContent = "Sending " + file.name;
      request.send(file);
    };
    input.addEventListener("change", () => { if (input.files[0]) send(input.files[0]); });
    drop.addEventListener("dragover", e => { e.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", e => { e.preventDefault(); drop.classList.remove("over"); if (e.dataTransfer.files[0]) send(e.dataTransfer.files[0]); });
  }

  document.addEventListener("click", event => {
    const at = event.target.closest?.("[data-seek]");
    if (!at) return;
    const player = document.getElementById(at.dataset.player);
    if (!player) return;
    if (at.dataset.src && player.getAttribute("src") !== at.dataset.src) player.src = at.dataset.src;
    const go = () => { player.currentTime = Number(at.dataset.seek); player.play().catch(() => {}); };
    player.readyState >= 1 ? go() : player.addEventListener("loadedmetadata", go, { once: true });
    player.scrollIntoView({ block: "nearest" });
  });
})();
