"""All settings of the platform, in one model: `fennel_core.settings.model.Settings`."""
