from measuring import cost_of, settings, tell

count, steps = settings()["count"], 10_000
functions = [lambda ctx: None for _ in range(count)]


def run():
    ctx = {}
    for _ in range(steps):
        for function in functions:
            function(ctx)


tell(None, cost=cost_of(run, number=3) / steps / count * 1e6)
