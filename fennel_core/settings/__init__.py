"""One model of everything that can be configured (`fennel_core.settings.model.Settings`)."""
