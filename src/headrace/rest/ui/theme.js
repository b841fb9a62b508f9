// Runs before the first paint, so that the chosen theme does not flash: a classic script in the head, not a module.
try {
  const theme = localStorage.getItem("headrace-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the system's theme is used.
}
