"""The demo host: settings, URLs, landing page and the `demo` command. Never in the wheel."""
