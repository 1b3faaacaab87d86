(() => {
  const root = document.documentElement, button = document.querySelector("[data-theme-switch]");
  const remembered = (value) => {
    try { return value ? localStorage.setItem("tdumpra-theme", value) : localStorage.getItem("tdumpra-theme"); } catch { return null; }
  };
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { if (button) button.textContent = dark() ? "Light page" : "Dark page"; };
  const kept = remembered();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; remembered(root.dataset.theme); say(); });
  say();
})();
