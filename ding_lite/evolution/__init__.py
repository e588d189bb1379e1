"""Evolutionary hyperparameter search: populations of agents, tournaments and mutations."""

from ding_lite.evolution.agent import Agent, Birth
from ding_lite.evolution.mutation import Mutation
from ding_lite.evolution.population import Life, Population
from ding_lite.evolution.search import Search, choice, integer, log_uniform, uniform
from ding_lite.evolution.tournament import Tournament

__all__ = [
    "Agent",
    "Birth",
    "Life",
    "Mutation",
    "Population",
    "Search",
    "Tournament",
    "choice",
    "integer",
    "log_uniform",
    "uniform",
]
