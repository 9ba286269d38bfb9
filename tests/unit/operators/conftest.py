"""Hypothesis has no deadline here: the first example also pays for imports."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "laws",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("laws")
