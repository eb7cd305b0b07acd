// Before the first paint, so that a chosen theme never flashes.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; the system's theme is then the one.
}
