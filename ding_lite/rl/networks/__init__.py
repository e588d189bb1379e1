"""Networks: torsos, heads, flat weights, and observation normalisation."""
