"""Presets of settings for environments, a module for each family of policies.

Settings without a preset have defaults. Presets may also contain the options `max_env_steps`,
`num_envs` and `target`. The `eval_every` of a preset is a minimum period: the `eval_share` still
limits evaluations.
"""
