"""Stand-ins for models, for servers without one: `pie serve --worker paced:...`, `pie test --fake`, and tests."""
