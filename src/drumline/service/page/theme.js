// Loaded before anything is drawn, so that a chosen theme does not flash. A classic script: modules run later.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("drumline-theme");
  } catch {
    chosen = null; // storage is forbidden: the system's theme it is
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
