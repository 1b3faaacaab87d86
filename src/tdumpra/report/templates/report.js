(() => {
  const gallery = document.querySelector("[data-gallery]");
  if (!gallery) return;
  const cards = [...gallery.children], size = Number(gallery.dataset.pageSize);
  const filters = document.querySelector(".filters"), pager = document.querySelector(".pager");
  const where = pager.querySelector("[data-where]"), steps = [...pager.querySelectorAll("[data-step]")];
  let outcome = "", page = 0;
  const show = () => {
    const fitting = cards.filter((card) => !outcome || card.dataset.outcome === outcome);
    const pages = Math.max(1, Math.ceil(fitting.length / size));
    page = Math.min(Math.max(page, 0), pages - 1);
    const shown = new Set(fitting.slice(page * size, (page + 1) * size));
    for (const card of cards) card.hidden = !shown.has(card);
    pager.hidden = pages < 2;
    where.textContent = `${page * size + 1}–${Math.min((page + 1) * size, fitting.length)} of ${fitting.length}`;
    for (const step of steps) step.disabled = page + Number(step.dataset.step) < 0 || page + Number(step.dataset.step) >= pages;
  };
  filters.hidden = false;
  filters.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    outcome = button.dataset.filter; page = 0;
    for (const each of filters.children) each.setAttribute("aria-pressed", String(each === button));
    show();
  });
  for (const step of steps) step.addEventListener("click", () => { page += Number(step.dataset.step); show(); });
  addEventListener("beforeprint", () => { for (const card of cards) card.hidden = false; });
  addEventListener("afterprint", show);
  show();
})();
