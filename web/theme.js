// Applies the chosen theme before the first paint, so that no other theme flashes.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be disabled; the system's theme then applies.
}
