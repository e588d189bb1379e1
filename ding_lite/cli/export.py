"""`ding-lite export`: export the network of a trained policy for programs without this package."""

from __future__ import annotations

import argparse

from ding_lite.cli.watch import describe_policy
from ding_lite.io.importing import look_here
from ding_lite.log import configure
from ding_lite.recipes.runs.export import SUFFIXES, check_onnx, describe_inputs, export_policy
from ding_lite.recipes.runs.loading import load_policy


def export_run(options: argparse.Namespace) -> None:
    configure("warning")
    if options.trust:
        look_here()
    form = options.format
    if options.out is None and form is None:
        form = "onnx"
    if form == "onnx":
        check_onnx()  # before anything is loaded
    policy = load_policy(options.run, last=options.last, trust=options.trust)
    path = export_policy(policy, options.out or f"policy{SUFFIXES[form]}", format=form)
    form = form or ("onnx" if path.suffix == SUFFIXES["onnx"] else "torch")
    print(
        f"{describe_policy(policy, options.run, last=options.last)}\n"
        f"Wrote {path}: it takes {describe_inputs(policy, form)}."
    )
