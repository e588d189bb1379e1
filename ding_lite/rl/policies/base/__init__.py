"""The base classes of policies, and the settings and checks that all policies share."""
