"""Networks of observations of several parts, some of which are images."""
