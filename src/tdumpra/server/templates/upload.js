(() => {
  const form = document.querySelector("[data-upload]"), drop = document.querySelector("[data-drop]");
  const results = document.querySelector("[data-results]"), list = document.querySelector("[data-list]");
  if (!form || !window.crypto || !crypto.getRandomValues) return;
  const input = form.elements.images, button = form.querySelector("button");
  const random = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (n) => n.toString(16).padStart(2, "0")).join("");

  const line = (file) => {
    const item = document.createElement("li"), name = document.createElement("span");
    const bar = document.createElement("progress"), state = document.createElement("span");
    name.textContent = file.name;
    bar.max = 1; bar.value = 0; bar.setAttribute("aria-label", `Upload of ${file.name}`);
    state.textContent = "waiting";
    item.append(name, bar, state);
    list.append(item);
    return { bar, state };
  };

  const send = (file, lesion, key, shown, tries) => new Promise((done) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/cases" + (lesion ? `?lesion=${encodeURIComponent(lesion)}` : ""));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("Idempotency-Key", key);
    request.upload.onprogress = (event) => { if (event.lengthComputable) shown.bar.value = 0.8 * event.loaded / event.total; };
    request.upload.onload = () => { shown.state.textContent = "being read"; };
    const again = (seconds) => { shown.state.textContent = "busy, trying again"; setTimeout(() => send(file, lesion, key, shown, tries - 1).then(done), 1000 * seconds); };
    request.onerror = () => { if (tries > 0) again(2); else { shown.state.textContent = "the server does not answer"; done(); } };
    request.onload = () => {
      if (request.status === 503 && tries > 0) { again(Number(request.getResponseHeader("Retry-After")) || 1); return; }
      let answer = {};
      try { answer = JSON.parse(request.responseText); } catch { answer = {}; }
      if (request.status === 201) {
        const link = document.createElement("a");
        link.href = `/cases/${answer.id}`;
        link.textContent = `Case ${answer.number}`;
        shown.bar.value = 1;
        shown.state.replaceChildren(link);
      } else {
        shown.bar.value = 0;
        shown.state.textContent = answer.detail || `not taken (${request.status})`;
        shown.state.className = "bad";
      }
      done();
    };
    shown.state.textContent = "uploading";
    request.send(file);
  });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const files = [...input.files].map((file) => ({ file, key: random(), shown: null }));
    const lesion = form.elements.lesion.value.trim();
    results.hidden = false;
    button.disabled = true;
    for (const each of files) each.shown = line(each.file);
    for (const each of files) await send(each.file, lesion, each.key, each.shown, 30);
    button.disabled = false;
    form.reset();
  });
  for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); input.files = event.dataTransfer.files; });
})();
