// The HTTP API, to be tried: Swagger UI over the server's own description. It keeps a key in its memory alone.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null, // the description is not sent elsewhere
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
