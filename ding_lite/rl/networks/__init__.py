"""Networks: torsos, heads, and observation normalisation."""
