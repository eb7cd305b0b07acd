/* The API description, shown by Swagger UI. */

/* Swagger UI's dark colours are enabled by a class. */
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => {
  const chosen = document.documentElement.dataset.theme;
  document.documentElement.classList.toggle("dark-mode", chosen ? chosen === "dark" : dark.matches);
};
dark.addEventListener("change", follow);
follow();

window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  requestSnippetsEnabled: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
